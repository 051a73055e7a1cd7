"""Do many trials: the ledger that remembers them, the driver, and what executes them."""
