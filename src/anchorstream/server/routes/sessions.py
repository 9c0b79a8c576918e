"""/v1/sessions: list, show, fork, delete."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends

from anchorstream.server.errors import ApiError
from anchorstream.server.schema import ForkRequest, SessionName
from anchorstream.server.sessions import Session
from anchorstream.server.state import Ready, ready

router = APIRouter(prefix="/v1/sessions")
Model = Annotated[Ready, Depends(ready)]


@router.get("", summary="All conversations, the newest first.")
async def list_sessions(model: Model, limit: int = 100) -> dict[str, Any]:
    """Facts about them, never what was said."""
    if not 1 <= limit <= 10_000:
        raise ApiError(400, f"limit must be from 1 to 10000, not {limit}", code="invalid_value", param="limit")

    def told() -> list[dict[str, Any]]:
        found = sorted(model.keeper.sessions, key=lambda each: -each.used)
        return [_describe(each) for each in found[:limit]]

    return {"object": "list", "data": await _ask(model, told), "total": len(model.keeper.sessions)}


@router.get("/{session_id}", summary="One conversation, with its cache bank by bank.")
async def show_session(session_id: SessionName, model: Model) -> dict[str, Any]:
    """What is held, and what has been evicted."""

    def told() -> dict[str, Any]:
        session = _find(model, session_id)
        cache = session.stream.describe() if session.stream is not None else None
        return {**_describe(session), "cache": cache}

    return await _ask(model, told)


@router.post("/{session_id}/fork", summary="A copy that goes its own way.")
async def fork_session(session_id: SessionName, model: Model, body: ForkRequest | None = None) -> dict[str, Any]:
    """Takes no time and hardly any memory: full banks are shared."""
    return await _ask(
        model, lambda: _describe(model.keeper.fork(_find(model, session_id), body.id if body is not None else None))
    )


@router.delete("/{session_id}", summary="Forget a conversation.")
async def delete_session(session_id: SessionName, model: Model) -> dict[str, Any]:
    """In memory and on disk."""

    def forget() -> dict[str, Any]:
        session = _find(model, session_id)
        if session.busy or session.saving:
            raise ApiError(409, f"session {session_id!r} is busy: try again", code="session_busy", retry_after=1)
        model.keeper.delete(session)
        return {"id": session_id, "object": "session.deleted", "deleted": True}

    return await _ask(model, forget)


async def _ask(model: Ready, work: Any) -> Any:
    return await asyncio.wrap_future(model.scheduler.call(work))


def _find(model: Ready, identity: str) -> Session:
    session = model.keeper.sessions.get(identity)
    if session is None:
        raise ApiError(404, f"there is no session {identity!r}", code="session_not_found", param="session_id")
    return session


def _describe(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "object": "session",
        "created": int(session.created),
        "used": int(session.used),
        "turns": session.num_turns,
        "tokens": session.length,
        "pinned_tokens": len(session.pinned),
        "cache_size": session.config.cache_size,
        "place": "memory" if session.stream is not None else "disk",
        "kept": session.record is not None,
        "busy": session.busy,
    }
