"""GET /health, /metrics and /v1/models."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from anchorstream.server.errors import ApiError
from anchorstream.server.state import Ready, State, ready

router = APIRouter()


@router.get("/health", summary="Whether the server can answer. Needs no key.")
def health(request: Request) -> Response:
    """503 while the model is being loaded."""
    state: State = request.app.state.anchorstream
    if not state.is_ready:
        return JSONResponse({"status": "loading"}, 503, {"Retry-After": "1"})
    return JSONResponse({"status": "ok", **state.ready.scheduler.load})


@router.get("/metrics", summary="Figures for Prometheus.", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """See docs/metrics.md."""
    state: State = request.app.state.anchorstream
    if state.is_ready:
        state.ready.measure(state.metrics)
    return Response(state.metrics.exposition(), media_type=CONTENT_TYPE_LATEST)


@router.get("/v1/models", summary="The model that answers.")
def models(model: Annotated[Ready, Depends(ready)]) -> dict[str, Any]:
    """One model."""
    return {"object": "list", "data": [_describe(model)]}


@router.get("/v1/models/{model_id:path}", summary="One model.")
def one_model(model_id: str, model: Annotated[Ready, Depends(ready)]) -> dict[str, Any]:
    """404 for any but the one that is loaded."""
    if model_id != model.name:
        raise ApiError(
            404, f"there is no model {model_id!r} here; there is {model.name!r}", code="model_not_found", param="model"
        )
    return _describe(model)


def _describe(model: Ready) -> dict[str, Any]:
    spec, config = model.llm.spec, model.config.stream
    return {
        "id": model.name,
        "object": "model",
        "created": model.started,
        "owned_by": "anchorstream",
        "meta": {
            "vocab_size": spec.vocab_size,
            "trained_context": spec.trained_context,
            "cache_size": config.cache_size,
            "num_sinks": config.num_sinks,
            "endless": True,
            **model.llm.engine.describe(),
        },
    }
