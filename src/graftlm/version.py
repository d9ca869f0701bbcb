"""The engine's version; it imports nothing, so `graftlm --version` costs nothing."""

__version__ = "0.1.0"
