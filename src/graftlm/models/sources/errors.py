"""Why a model could not be made present; each text names what the user typed and the cure.

StartupError
├── ModelNotFound      no such directory, file or hub id
├── FetchFailed        it exists perhaps, but could not be fetched
└── NoRevisions        a revision of what has none
"""

from __future__ import annotations

from graftlm.contracts.errors import StartupError


class ModelNotFound(StartupError):
    def __init__(self, model: str, *, problem: str, cure: str) -> None:
        super().__init__(f"the model {model!r} was not found: {problem}; {cure}")


class FetchFailed(StartupError):
    def __init__(self, model: str, *, problem: str, cure: str) -> None:
        super().__init__(f"the model {model!r} could not be fetched: {problem}; {cure}")


class NoRevisions(StartupError):
    def __init__(self, model: str, revision: str) -> None:
        super().__init__(
            f"--revision={revision!r} has no effect on the model {model!r}: only hub models have revisions; "
            "leave it out"
        )
