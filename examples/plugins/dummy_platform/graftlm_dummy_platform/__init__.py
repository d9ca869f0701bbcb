"""The two entry points of the package: a detector, and a general plugin that replaces an op.

Importing this module imports neither torch nor the engine; only what is needed is imported, when it is.
"""


def dummy_platform_plugin() -> str | None:
    """Name the platform class, or return None where the device is missing. This device is always there."""
    return "graftlm_dummy_platform.platform:DummyPlatform"


def register_ops() -> None:
    """Replace the rotary embedding; the import runs the decorator `register_oot`."""
    import graftlm_dummy_platform.rotary  # noqa: F401
