"""BABILong: facts of a small world scattered in a long text, and a question about them."""
