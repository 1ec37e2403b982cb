"""The error tree: every error that Vivace raises for a user's mistake or a fault it can name.

    VivaceError
    ├── InvalidRequest            a field of a request is wrong                     400
    │   ├── UnknownName           a name is not in its table (nearest name given)   400
    │   │   └── UnknownModel      no such model in the catalog or the server        404
    │   ├── ContextLengthExceeded prompt and answer do not fit the context          400
    │   └── BodyTooLarge          a body over the stated limit                      413
    ├── ConfigError               an option or environment variable is wrong
    ├── ModelError                a model cannot be had or used
    │   ├── DownloadError         network, disk, hash or licence stopped a download
    │   ├── WeightError           a weight file is damaged, hostile or does not fit
    │   └── UnsupportedModel      the architecture or a feature of it is not known
    │       └── NotRecordable     its step holds what no recorded step can do
    ├── MissingExtra              an optional dependency is not installed
    └── EngineError               the engine could not serve a valid request        500
        ├── Overloaded            queue limits reached, try again later             429
        ├── StepFailed            a fault inside a step that this request caused    500
        ├── EngineDied            the engine process ended                          503
        └── Cancelled             the client went away or cancelled                 499

A message says what came and what was expected; `hint` says what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class VivaceError(Exception):
    """Base of all errors. `hint` is one sentence that says what to do; `status` is the HTTP status it maps to."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\nhint: {self.hint}" if self.hint else self.message


class InvalidRequest(VivaceError):
    """A request that cannot be served as it is; `field` names the part at fault, dotted for nested ones."""

    status = 400
    code = "invalid_value"

    def __init__(self, message: str, *, field: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.field = field


class UnknownName(InvalidRequest):
    code = "unknown_name"


class UnknownModel(UnknownName):
    status = 404
    code = "model_not_found"


class ContextLengthExceeded(InvalidRequest):
    code = "context_length_exceeded"


class BodyTooLarge(InvalidRequest):
    status = 413
    code = "body_too_large"


class ConfigError(VivaceError):
    status = 400
    code = "config_error"


class ModelError(VivaceError):
    code = "model_error"


class DownloadError(ModelError):
    """`reason` is one word for programs: network, missing, gated, digest, disk, package or offline."""

    code = "download_error"

    def __init__(self, message: str, *, reason: str = "network", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = reason


class WeightError(ModelError):
    code = "weight_error"


class UnsupportedModel(ModelError):
    code = "unsupported_model"


class NotRecordable(UnsupportedModel):
    code = "not_recordable"


class MissingExtra(VivaceError):
    code = "missing_extra"

    def __init__(self, extra: str, *, purpose: str) -> None:
        super().__init__(f"{purpose} needs the extra '{extra}'", hint=f"pip install 'vivace[{extra}]'")
        self.extra = extra


class EngineError(VivaceError):
    code = "engine_error"


class Overloaded(EngineError):
    status = 429
    code = "overloaded"


class StepFailed(EngineError):
    code = "step_failed"


class EngineDied(EngineError):
    status = 503
    code = "engine_died"


class Cancelled(EngineError):
    status = 499
    code = "cancelled"


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint that names the closest of `known`, or lists the first few when none is close."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    listed = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"known: {listed}" if listed else "none are known"
