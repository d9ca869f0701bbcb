"""Fixtures of the plugin tests."""

from fake_site import site

__all__ = ["site"]
