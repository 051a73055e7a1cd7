"""The loss that the memory descends."""
