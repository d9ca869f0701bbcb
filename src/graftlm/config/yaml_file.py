"""The `--config FILE.yaml` file: a mapping whose keys are flag names, with dashes or underscores.

It does not know which options exist; `config/options.py` judges the names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graftlm.config.errors import ConfigError


def read_yaml_file(path: str) -> dict[str, Any]:
    """Return the file's mapping; raises ConfigError naming the file and the line."""
    import yaml

    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"--config={path!r}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config={path!r}: it cannot be read ({error})") from None
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"--config={path!r}: it is no YAML ({problem})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config={path!r}: it must hold a mapping of flags to values, such as 'port: 8123'")
    return content
