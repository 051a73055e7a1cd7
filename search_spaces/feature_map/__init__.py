"""What the memory sees of a key and of a query."""
