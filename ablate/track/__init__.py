"""The MLflow view of a study: made from its ledger, and made again from it at any time."""
