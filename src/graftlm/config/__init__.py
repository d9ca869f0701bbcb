"""What was asked for and what was decided, typed; it decides nothing itself."""

from graftlm.config.engine_config import EngineConfig
from graftlm.config.errors import ConfigError, InvalidOption, UnknownOption
from graftlm.config.server_config import ServerConfig

__all__ = ["ConfigError", "EngineConfig", "InvalidOption", "ServerConfig", "UnknownOption"]
