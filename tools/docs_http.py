"""The HTTP page of docs/reference, from the OpenAPI description that the server itself hands out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from vivace.config import ServeConfig
from vivace.serve.app import make_app
from vivace.serve.hub import Hub
from vivace.serve.openai_schemas import IGNORED, NOT_SERVED

LIMITS = {
    "minimum": "at least {}",
    "maximum": "at most {}",
    "exclusiveMinimum": "above {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "maxProperties": "at most {} keys",
}
NAMES = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}


def http_page() -> str:
    """Routes, bodies with their fields, and what is accepted without effect."""
    description = _describe()
    schemas = description["components"]["schemas"]
    parts = [
        "# HTTP",
        "The server speaks the OpenAI API. Every field is checked before the engine sees it; an unknown one is an "
        "error that names the nearest known field. `GET /docs` of a running server shows the same as a web page, "
        "`GET /openapi.json` as data.",
        "## Routes",
        "| route | what it does | statuses |\n| --- | --- | --- |",
    ]
    bodies: dict[str, str] = {}
    for path, methods in description["paths"].items():
        for method, route in methods.items():
            summary = (route.get("description") or route.get("summary") or "").split("\n")[0]
            statuses = " ".join(status for status in route["responses"] if status != "422")  # FastAPI's own; never sent
            parts[-1] += f"\n| `{method.upper()} {path}` | {summary} | {statuses} |"
            if "requestBody" in route:
                reference = route["requestBody"]["content"]["application/json"]["schema"]["$ref"]
                bodies[f"{method.upper()} {path}"] = reference.rpartition("/")[2]
    for route, name in bodies.items():
        parts += [f"## {route}", _fields(schemas[name], schemas)]
    parts += ["## Fields without effect", "They are accepted and change nothing; the server logs them at debug level."]
    parts.append(
        "| field | why |\n| --- | --- |\n" + "\n".join(f"| `{name}` | {why} |" for name, why in IGNORED.items())
    )
    parts += ["## Fields that are not served", "They are refused unless they ask for nothing, that is, hold one of:"]
    rows = [
        f"| `{name}` | {', '.join(f'`{_json(value)}`' for value in passing)} |" for name, passing in NOT_SERVED.items()
    ]
    parts.append("| field | passes |\n| --- | --- |\n" + "\n".join(rows))
    return "\n\n".join(parts)


def _describe() -> dict[str, Any]:
    """The OpenAPI description; no route is called, so that no engine is needed."""
    nothing: Any = None
    found: dict[str, Any] = make_app(Hub(ServeConfig(), nothing, {}, nothing, nothing)).openapi()
    return found


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    lines = ["| field | value | |", "| --- | --- | --- |"]
    for name, field in schema["properties"].items():
        if name in IGNORED or name in NOT_SERVED:
            continue
        notes = [*(["required"] if name in required else []), field.get("description", "")]
        lines.append(f"| `{name}` | {_value(field, schemas)} | {' '.join(note for note in notes if note)} |")
    return "\n".join(lines)


def _value(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """What a field takes, in words."""
    if "$ref" in field:
        return _object(schemas[field["$ref"].rpartition("/")[2]], schemas)
    if "anyOf" in field:
        kinds = [_value(item, schemas) for item in field["anyOf"] if item.get("type") != "null"]
        return ", or ".join(dict.fromkeys(kinds))
    if "enum" in field or "const" in field:
        return " or ".join(f"`{choice}`" for choice in field.get("enum", [field.get("const")]))
    limits = ", ".join(text.format(_number(field[key])) for key, text in LIMITS.items() if key in field)
    kind = _kind(field, schemas)
    return f"{kind} ({limits})" if limits else kind


def _kind(field: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    if field.get("type") == "array":
        return f"list of {_value(field['items'], schemas)}"
    if field.get("type") == "object":
        inner = field.get("additionalProperties")
        return f"object with values: {_value(inner, schemas)}" if isinstance(inner, dict) and inner else "object"
    return NAMES.get(str(field.get("type")), "any value")


def _object(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    names = ", ".join(f"`{name}`" for name in schema.get("properties", ()))
    return f"objects with {names}"


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def _json(value: object) -> str:
    return json.dumps(value)
