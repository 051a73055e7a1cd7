"""How the momentum is orthogonalised."""
