"""What is seen: figures, tables and the report of a study."""
