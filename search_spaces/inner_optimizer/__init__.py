"""How a gradient becomes a change of the memory."""
