"""How many tokens each write optimises over."""
