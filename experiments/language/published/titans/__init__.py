"""Numbers that papers print for language models."""
