"""POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from anchorstream.server.schema import DetokenizeRequest, TokenizeRequest
from anchorstream.server.state import Ready, ready

router = APIRouter()


@router.post("/tokenize", summary="Cut a text into tokens.")
def tokenize(body: TokenizeRequest, model: Annotated[Ready, Depends(ready)]) -> dict[str, Any]:
    """Ids, without a beginning-of-stream token."""
    ids = model.llm.tokenizer.tokenize(body.content, special=body.special)
    return {"tokens": ids, "count": len(ids)}


@router.post("/detokenize", summary="Put tokens together.")
def detokenize(body: DetokenizeRequest, model: Annotated[Ready, Depends(ready)]) -> dict[str, Any]:
    """Text; bytes that are not UTF-8 become U+FFFD."""
    return {"content": model.llm.tokenizer.detokenize(body.tokens)}
