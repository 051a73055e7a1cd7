"""How memory and attention share the layers of a model."""
