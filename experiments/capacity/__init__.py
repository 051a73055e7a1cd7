"""How many pairs a memory can hold (Atlas section 3.1, Propositions 1 and 2, Theorem 1)."""
