"""In-context recall: read a document, then fill in what it said; the six sets of Atlas Table 5."""
