"""Numbers that papers print for zero-shot questions to language models."""
