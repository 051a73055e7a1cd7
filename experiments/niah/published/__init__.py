"""Numbers that papers print for needles in a haystack."""
