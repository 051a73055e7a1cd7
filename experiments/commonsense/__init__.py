"""Common sense, zero-shot: multiple choice, last words and perplexity, asked through lm-eval."""
