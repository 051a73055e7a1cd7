"""How fast an MLP learns a function online, one step per token (Atlas section 6.4)."""
