"""A plugin module that cannot be imported."""

raise RuntimeError("no such device")
