"""What crosses a floor, and what a plugin must provide; nothing here computes.

Tensor and web types appear in annotations only, so that every process may import this package.
"""
