"""What a memory is made of: a matrix, an MLP, or all keys and values."""
