"""From finished trials to numbers that can be defended: frames, effects, learning curves."""
