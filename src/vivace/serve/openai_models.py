"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse

from vivace.errors import UnknownModel, nearest
from vivace.serve.routing import Routes


async def list_models(routes: Routes) -> Response:
    """All models of this server, those that are still being loaded too."""
    return JSONResponse({"object": "list", "data": [_model(routes, name) for name in routes.hub.texts]})


async def retrieve_model(name: str, routes: Routes) -> Response:
    """One model."""
    if name not in routes.hub.texts:
        raise UnknownModel(f"unknown model '{name[:100]}'", field="model", hint=nearest(name[:100], routes.hub.texts))
    return JSONResponse(_model(routes, name))


def _model(routes: Routes, name: str) -> dict[str, Any]:
    found: dict[str, Any] = {"id": name, "object": "model", "created": routes.started, "owned_by": "vivace"}
    info = routes.hub.port.models.get(name)
    if info is not None:
        found |= {"kind": info.kind, "context_length": info.context_length, "vocab_size": info.vocab_size}
        found |= {"dimensions": info.dimensions} if info.dimensions else {}
        found |= {"digest": info.digest, "activations": info.activations}
        found |= {"quality": asdict(info.quality)} if info.quality else {}
    return found
