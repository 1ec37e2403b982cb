"""From a JSON object to a typed body; what pydantic found wrong becomes one error that names field and hint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from vivace.errors import InvalidRequest, nearest

Body = TypeVar("Body", bound=BaseModel)

# What pydantic's kinds of error expected, in the words of JSON.
_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "literal_error": "one of {expected}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "at least {ge}",
    "less_than_equal": "at most {le}",
    "too_short": "at least {min_length} items",
    "too_long": "at most {max_length} items",
    "string_too_short": "at least {min_length} characters",
    "string_too_long": "at most {max_length} characters",
}
_RANGES = ("greater_than", "greater_than_equal", "less_than_equal", "too_short", "too_long", "string_too_short")


def parse_body(kind: type[Body], data: Mapping[str, Any]) -> Body:
    """`data` as a `kind`. Raises InvalidRequest for the first field that is wrong."""
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise _explain(kind, data, error) from None


def listed(given: str | list[int] | list[str] | list[list[int]]) -> list[str | list[int]]:
    """The inputs of a body: a text or a list of ids is one input, a list of those is several."""
    if isinstance(given, str):
        return [given]
    found: list[Any] = given
    return [found] if isinstance(found[0], int) else found


def _explain(kind: type[BaseModel], data: Mapping[str, Any], error: ValidationError) -> InvalidRequest:
    detail, path, alike = _pick(data, error)
    field = ".".join(map(str, path))
    if detail["type"] == "extra_forbidden":
        known = _fields_at(kind, path[:-1])
        return InvalidRequest(f"unknown field '{field}'", field=field, hint=nearest(str(path[-1]), known))
    if detail["type"] == "missing":
        return InvalidRequest(f"the field '{field}' is missing", field=field, hint=f"add '{path[-1]}' to the request")
    if detail["type"] == "value_error":  # raised by a validator of ours as "field: reason"
        name, _, reason = str(detail["ctx"]["error"]).partition(": ")
        field = ".".join(map(str, [*path, name]))
        hint = f"add '{name}'" if reason.startswith("required") else f"change or leave out '{name}'"
        return InvalidRequest(f"the field '{field}' is {reason}", field=field, hint=hint)
    expected = " or ".join(dict.fromkeys(_expectation(item) for item in alike))
    return InvalidRequest(
        f"the field '{field}' is {_shown(data, path)}, expected {expected}", field=field, hint=_hint(detail, field)
    )


def _pick(data: Mapping[str, Any], error: ValidationError) -> tuple[Any, list[int | str], list[Any]]:
    """The error to report, its path in `data`, and all errors about the same value (members of one union).

    Members of a union complain one after the other: meant is one that only a range stops, else the one that got
    deepest."""
    found = []
    for item in error.errors(include_url=False):
        path = _real_path(data, item["loc"], is_absent=item["type"] in ("missing", "extra_forbidden"))
        found.append((item, path))
    detail, path = max(
        found, key=lambda pair: (pair[0]["type"] in _RANGES, len(pair[1]), pair[0]["type"] == "extra_forbidden")
    )
    return detail, path, [item for item, other in found if other == path]


def _real_path(data: Any, loc: Sequence[int | str], *, is_absent: bool) -> list[int | str]:
    """`loc` without the names of union members that pydantic puts between the keys."""
    path: list[int | str] = []
    for position, part in enumerate(loc):
        last = position == len(loc) - 1
        if isinstance(data, Mapping) and isinstance(part, str) and (part in data or (is_absent and last)):
            path.append(part)
            data = data.get(part)
        elif isinstance(data, list) and isinstance(part, int) and part < len(data):
            path.append(part)
            data = data[part]
    return path


def _fields_at(kind: type[BaseModel], path: Sequence[int | str]) -> set[str]:
    for part in path:
        if isinstance(part, str) and part in kind.model_fields:
            kind = _model_in(kind.model_fields[part].annotation) or kind
    return set(kind.model_fields)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    found = (_model_in(argument) for argument in get_args(annotation))
    return next((model for model in found if model is not None), None)


def _expectation(detail: Mapping[str, Any]) -> str:
    known = _EXPECTED.get(detail["type"])
    return known.format(**detail.get("ctx", {})) if known else str(detail["msg"])


def _shown(data: Any, path: Sequence[Any]) -> str:
    for part in path:
        data = data[part]
    if isinstance(data, list):
        return f"a list of {len(data)}"
    if isinstance(data, Mapping):
        return f"an object with {len(data)} keys"
    text = json.dumps(data, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _hint(detail: Mapping[str, Any], field: str) -> str:
    if detail["type"] in _RANGES:
        return f"bring '{field}' into the range"
    return f"give '{field}' the expected type, or leave it out if it is optional"
