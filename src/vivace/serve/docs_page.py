"""The page at /docs: routes, bodies field by field, and what has no effect. Plain HTML, nothing fetched elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from vivace.serve.openai_schemas import IGNORED, NOT_SERVED

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 1.5rem } th, td { text-align: left; vertical-align: top;
border-bottom: 1px solid #ddd; padding: .25rem .75rem .25rem 0 } code { background: #f4f4f4; padding: 0 .2rem }
h2 { margin-top: 2.5rem }
"""


def docs_page(description: Mapping[str, Any]) -> str:
    """The page for an OpenAPI description."""
    schemas = description["components"]["schemas"]
    body = "".join(
        _route(method, path, operation, schemas)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    title = escape(f"{description['info']['title']} {description['info']['version']}")
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
        f"<h1>{title}</h1><p>The OpenAI API. The same as data: <a href=openapi.json>openapi.json</a></p>{body}"
        f"<h2>Accepted without effect</h2>{_table(('field', 'reason'), IGNORED.items())}"
        f"<h2>Not served by this version</h2>{_table(('field', 'values that pass'), _passing())}</html>"
    )


def _route(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    text = escape(operation.get("description", operation.get("summary", "")))
    head = f"<h2><code>{escape(method.upper())} {escape(path)}</code></h2><p>{text}</p>"
    content = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    if "$ref" not in content.get("schema", {}):
        return head
    return head + _fields(_target(content["schema"], schemas))


def _fields(schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = [
        (f"{name} (required)" if name in required else name, _kind(field), field.get("description", ""))
        for name, field in schema["properties"].items()
        if name not in IGNORED and name not in NOT_SERVED
    ]
    return _table(("field", "value", ""), rows)


def _kind(schema: Mapping[str, Any]) -> str:
    """A type in words: "number 0 to 2", "list of string", "string or list of string"."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return " or ".join(_kind(part) for part in schema["anyOf"] if part.get("type") != "null")
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    limits = f" {low} to {high}" if low is not None and high is not None else ""
    return f"{schema.get('type', 'any')}{limits}"


def _target(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schemas[schema["$ref"].rpartition("/")[2]]
    return found


def _passing() -> Iterator[tuple[str, str]]:
    for name, values in NOT_SERVED.items():
        yield name, ", ".join(json.dumps(value) for value in values)


def _table(head: tuple[str, ...], rows: Any) -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><td><code>{escape(first)}</code></td>{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<table><tr>{top}</tr>{body}</table>"
