"""What a checkpoint's config.json says, as a mapping that names itself when something is missing.

It does not know which entries an architecture needs, nor whether a value makes sense.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

from graftlm.config.errors import MissingCheckpointValue


class HFConfig(dict[str, Any]):
    """A plain dictionary, but `config["key"]` without the key is an error that speaks to whoever serves the model.

    An entry that is null says nothing, so it counts as missing.
    """

    def __init__(self, entries: Mapping[str, Any] = {}) -> None:
        super().__init__({key: value for key, value in entries.items() if value is not None})

    def __missing__(self, key: str) -> NoReturn:
        raise MissingCheckpointValue(key)
