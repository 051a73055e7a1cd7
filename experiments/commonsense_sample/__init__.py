"""The sets of common sense with rows that we have made up: for places without the real ones."""
