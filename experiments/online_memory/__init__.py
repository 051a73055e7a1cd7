"""How fast a memory of our models learns a function online, alone and with nothing trained."""
