"""What can go wrong between floors, with the sentence built by the class.

GraftlmError
├── RequestError          the caller's fault: an HTTP 4xx that names the parameter
│   ├── InvalidParameter
│   ├── NotYetSupported
│   ├── RequestTooLong
│   └── UnknownModel
├── StartupError          the server cannot start: one message, no traceback by default
│   └── ModelMismatch     a checkpoint's config or weights do not suit the model that computes it
├── EngineDead            the engine is gone, with the cause
└── EngineClosing         the engine takes no new requests
"""

from __future__ import annotations

from typing import Any

from graftlm.plugins.spelling import counted


class GraftlmError(Exception):
    """Anything graftlm says on purpose."""


class RequestError(GraftlmError):
    """A request that cannot be served; `status` is the HTTP status, `param` the field to blame."""

    status = 400
    code = "invalid_request"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidParameter(RequestError):
    code = "invalid_value"

    def __init__(self, param: str, value: Any, *, cure: str) -> None:
        super().__init__(f"{param}={value!r} is not possible: {cure}", param=param)


class NotYetSupported(RequestError):
    code = "not_yet_supported"

    def __init__(self, param: str, *, what: str) -> None:
        super().__init__(f"{param}: {what} is not yet supported by this server", param=param)


class RequestTooLong(RequestError):
    code = "context_length_exceeded"

    def __init__(self, *, prompt_tokens: int, limit: int, max_tokens: int | None = None) -> None:
        wish = f" and max_tokens={max_tokens} was asked for" if max_tokens is not None else ""
        super().__init__(
            f"the prompt has {counted(prompt_tokens, 'token')}{wish}, but the model's context is "
            f"{counted(limit, 'token')}; shorten the prompt or start the server with a larger --max-model-len",
            param="prompt",
        )


class UnknownModel(RequestError):
    status = 404
    code = "model_not_found"

    def __init__(self, name: str, *, served: list[str]) -> None:
        super().__init__(f"the model {name!r} does not exist; this server serves {served}", param="model")


class StartupError(GraftlmError):
    """The server cannot start; the text names the value and the cure."""


class ModelMismatch(StartupError, ValueError):
    """A checkpoint says what its model cannot compute, or its weights are not those that its config describes.

    Models and layers raise it, those of plugins too: who serves the model reads the text, without a traceback.
    """


class EngineDead(GraftlmError):
    """The engine died; the text says which process and why."""


class EngineClosing(GraftlmError):
    """The server is shutting down and takes no new requests."""
