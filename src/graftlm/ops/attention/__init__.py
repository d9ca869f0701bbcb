"""Attention backends: who computes attention over the paged KV cache, and the plain-torch reference."""
