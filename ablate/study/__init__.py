"""Declare a study in YAML and plan it: factors, cells, trials, costs and warnings."""
