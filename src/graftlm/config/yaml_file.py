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
    except UnicodeDecodeError as error:
        raise ConfigError(f"--config={path!r}: it is no UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"--config={path!r}: it cannot be read ({error.strerror})") from None
    try:
        document = yaml.compose(text, Loader=yaml.SafeLoader)
        content = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise ConfigError(f"--config={path!r}: it is no YAML ({line}{error.problem or error.context})") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"--config={path!r}: it is no YAML ({problem})") from None
    _refuse_repeated_keys(document, path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"--config={path!r}: it must hold a mapping of flags to values, such as 'port: 8123'")
    return content


def _refuse_repeated_keys(document: Any, path: str) -> None:
    """The last of two equal keys would win without a word."""
    seen: dict[str, int] = {}
    for key, _ in document.value if document is not None and document.id == "mapping" else ():
        name, line = str(key.value), key.start_mark.line + 1
        if name in seen:
            raise ConfigError(f"--config={path!r}: it sets {name} twice, in line {seen[name]} and in line {line}")
        seen[name] = line
