"""How much of the memory survives a token."""
