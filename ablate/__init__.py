"""Ablate: ablation studies of neural-memory sequence models."""
