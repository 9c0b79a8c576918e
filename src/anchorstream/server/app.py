"""The application: routes, guards and errors put together."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from anchorstream import __version__
from anchorstream.errors import AnchorstreamError
from anchorstream.server.errors import ApiError, as_api_error
from anchorstream.server.guard import Guard
from anchorstream.server.routes import completions, sessions, tokens, watch
from anchorstream.server.state import State

_PAGE = Path(__file__).with_name("page")
_log = logging.getLogger("anchorstream.server")
_POLICY = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_ERROR = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}


def make_app(state: State) -> FastAPI:
    """The ASGI application over a state."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        state.start()
        try:
            yield
        finally:
            state.close()

    app = FastAPI(
        title="anchorstream",
        version=__version__,
        description="Endless conversations for any OpenAI client.",
        lifespan=lifespan,
        docs_url=None,  # these pages would load scripts from another host
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.anchorstream = state
    for routes in (completions, sessions, tokens, watch):
        app.include_router(routes.router)

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        return FileResponse(_PAGE / "index.html", headers={"Content-Security-Policy": _POLICY})

    app.mount("/page", StaticFiles(directory=_PAGE), name="page")
    app.exception_handler(ApiError)(_tell)
    app.exception_handler(AnchorstreamError)(_tell)
    app.exception_handler(RequestValidationError)(_tell_invalid)
    app.exception_handler(HTTPException)(_tell_http)
    app.exception_handler(Exception)(_tell)
    if state.config.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(state.config.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=["Anchorstream-Session"],
        )
    app.add_middleware(Guard, key=state.config.api_key, max_body=state.config.max_body_bytes)
    app.openapi = lambda: _describe(app)  # type: ignore[method-assign]
    return app


async def _tell(_: Request, error: Exception) -> Response:
    told = as_api_error(error)
    if told.status >= 500 and not isinstance(error, ApiError):
        _log.error("a request failed", exc_info=error)
    return JSONResponse(told.body, told.status, told.headers)


async def _tell_invalid(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    param = (
        ".".join(part for part in place if not part.startswith(("str", "list[", "constrained", "function-"))) or None
    )
    message = f"{param}: {first['msg']}" if param else first["msg"]
    if first["type"] == "json_invalid":
        message, param = "the body is not JSON", None
    return JSONResponse(ApiError(400, message, code="invalid_value", param=param).body, 400)


async def _tell_http(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    told = ApiError(error.status_code, str(error.detail), code=codes.get(error.status_code, "http_error"))
    return JSONResponse(told.body, told.status, {**told.headers, **(error.headers or {})})


def _describe(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, with the errors that this server gives instead of the framework's."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        schema["components"].setdefault("schemas", {})["Error"] = _ERROR
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}, {}]
        told = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
        for path in schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
                for status, text in (
                    ("400", "The request cannot be carried out."),
                    ("401", "A key is wanted."),
                    ("404", "There is no such thing."),
                    ("409", "It is busy, or there already."),
                    ("413", "The request is too large."),
                    ("429", "Too many requests are waiting."),
                    ("503", "The model is being loaded, or there is no memory."),
                ):
                    operation["responses"].setdefault(status, {"description": text, **told})
        app.openapi_schema = schema
    return app.openapi_schema
