"""S-NIAH: find one sentence in a long text and say the value that it gave."""
