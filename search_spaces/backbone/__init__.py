"""The stack that carries the memories."""
