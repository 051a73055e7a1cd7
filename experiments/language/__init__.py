"""Byte-level modelling of text that every machine has."""
