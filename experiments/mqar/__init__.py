"""Multi-query associative recall: bind keys to values, then answer for each key later on."""
