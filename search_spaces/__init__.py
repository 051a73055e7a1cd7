"""What can be asked: one YAML per component choice and per named model."""
