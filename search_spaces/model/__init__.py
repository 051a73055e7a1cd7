"""Named models: each composes one choice of every active axis."""
