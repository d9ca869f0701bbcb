"""The two entry points of the package: a detector, and a general plugin that replaces an op.

Importing this module imports neither torch nor the engine; only what is needed is imported, when it is.
"""

import logging

#: A plugin's own logger lies under the engine's sinks: `--log-level plugin.dummy_platform_plugin=debug`.
logger = logging.getLogger("plugin.dummy_platform_plugin")


def dummy_platform_plugin() -> str | None:
    """Name the platform class, or return None where the device is missing. This device is always there."""
    logger.debug("detector called")
    return "graftlm_dummy_platform.platform:DummyPlatform"


def register_ops() -> None:
    """Replace the rotary embedding; the import runs the decorator `register_oot`."""
    import graftlm_dummy_platform.rotary  # noqa: F401

    logger.debug("ops registered")
