"""MAD: six synthetic tasks that each test one skill of a sequence layer."""
