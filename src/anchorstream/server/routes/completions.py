"""POST /v1/chat/completions and /v1/completions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Header, Request, Response
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from anchorstream.config import SamplingConfig, make
from anchorstream.errors import InputError
from anchorstream.server import sse
from anchorstream.server.errors import ApiError, as_api_error, bad
from anchorstream.server.job import Job, Wish
from anchorstream.server.messages import Conversation
from anchorstream.server.outbox import Admitted, Began, Done, Ended, Failed, Outbox, Text
from anchorstream.server.replies import Form, Reply, joined
from anchorstream.server.schema import ChatRequest, Sampling, SessionName, TextRequest, refuse_unknown
from anchorstream.server.state import Ready, ready
from anchorstream.stream.generation import Limits

router = APIRouter()
Model = Annotated[Ready, Depends(ready)]
_TEXT_TOKENS = 16  # OpenAI's default for text completions


@router.post("/v1/chat/completions", summary="Answer a conversation, however long it is.")
async def chat_completions(
    request: Request,
    body: ChatRequest,
    model: Model,
    anchorstream_session: Annotated[SessionName | None, Header()] = None,
) -> Response:
    """The whole history may be sent each time: what is known of it costs nothing."""
    config = request.app.state.anchorstream.config
    _check(body, model)
    if len(body.messages) > config.max_messages:
        raise bad(f"{len(body.messages)} messages are more than {config.max_messages}", "messages")
    if body.top_logprobs is not None and not body.logprobs:
        raise bad("top_logprobs needs logprobs: true", "top_logprobs")
    most = body.max_completion_tokens if body.max_completion_tokens is not None else body.max_tokens
    wish = Wish(
        sampling=_sampling(body, model),
        limits=Limits.make(config.max_tokens if most is None else most, body.stops, bool(body.ignore_eos)),
        grammar=_grammar(body),
        choices=body.n or 1,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        overflow=body.overflow or config.overflow,
    )
    pairs = [message.pair(place) for place, message in enumerate(body.messages)]
    conversation = await run_in_threadpool(Conversation.of, pairs) if len(pairs) > 500 else Conversation.of(pairs)
    job = Job(
        wish=wish,
        outbox=Outbox(asyncio.get_running_loop()),
        request=conversation,
        session_name=body.session or anchorstream_session,
    )
    form = Form("chat", model.name, model.fingerprint, model.llm.tokenizer, job)
    return await _answer(request, body, model, [job], form)


@router.post("/v1/completions", summary="Continue texts.")
async def completions(request: Request, body: TextRequest, model: Model) -> Response:
    """With `echo` and `logprobs` the prompt's own likelihoods are told."""
    config = request.app.state.anchorstream.config
    _check(body, model)
    if body.suffix:
        raise bad("suffix is not supported; leave it out", "suffix", "unsupported_parameter")
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise bad("best_of is supported only where it equals n", "best_of", "unsupported_parameter")
    wish = Wish(
        sampling=_sampling(body, model),
        limits=Limits.make(
            _TEXT_TOKENS if body.max_tokens is None else body.max_tokens, body.stops, bool(body.ignore_eos)
        ),
        choices=body.n or 1,
        logprobs=body.logprobs,
        echo=bool(body.echo) and body.logprobs is not None,
        overflow=body.overflow or config.overflow,
    )
    loop = asyncio.get_running_loop()
    ids = await run_in_threadpool(lambda: [_ids(prompt, model) for prompt in body.prompts])
    if body.stream and (len(ids) > 1 or body.echo):
        raise bad("stream goes with one prompt and without echo", "stream", "unsupported_parameter")
    jobs = [Job(wish=wish, outbox=Outbox(loop), prompt=each) for each in ids]
    form = Form("text", model.name, model.fingerprint, model.llm.tokenizer, jobs[0])
    return await _answer(request, body, model, jobs, form, echo=bool(body.echo))


def _check(body: Sampling, model: Ready) -> None:
    refuse_unknown(body)
    if body.model is not None and body.model not in (model.name, "default"):
        raise ApiError(
            404,
            f"there is no model {body.model!r} here; there is {model.name!r}",
            code="model_not_found",
            param="model",
        )


def _sampling(body: Sampling, model: Ready) -> SamplingConfig:
    options = body.options()
    size = model.llm.spec.vocab_size
    for token, _ in options.get("logit_bias", ()):
        if not 0 <= token < size:
            raise bad(f"logit_bias names token {token}; ids are 0 to {size - 1}", "logit_bias")
    return make(SamplingConfig, options)


def _grammar(body: ChatRequest) -> dict[str, Any] | None:
    wanted = body.response_format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return {}
    if wanted.json_schema is None or wanted.json_schema.schema_ is None:
        raise bad("json_schema needs a schema", "response_format.json_schema")
    return wanted.json_schema.schema_


def _ids(prompt: str | list[int], model: Ready) -> np.ndarray:
    tokenizer = model.llm.tokenizer
    try:
        if isinstance(prompt, str):
            found = tokenizer.with_bos(tokenizer.tokenize(prompt))
            if not found and tokenizer.bos is not None:
                found = [tokenizer.bos]
            prompt = found
        ids = tokenizer.check_ids(prompt)
    except InputError as error:
        raise bad(str(error), "prompt") from None
    if not len(ids):
        raise bad("the prompt is empty", "prompt")
    return ids


async def _answer(
    request: Request, body: Sampling, model: Ready, jobs: list[Job], form: Form, *, echo: bool = False
) -> Response:
    submitted: list[Job] = []
    try:
        for job in jobs:
            model.scheduler.submit(job)
            submitted.append(job)
        if body.stream:
            heartbeat = request.app.state.anchorstream.config.heartbeat
            first = await sse.unless_gone(request, jobs[0].outbox.take(heartbeat))
            for event in first:
                if isinstance(event, Failed):
                    raise event.error
            submitted = []  # from now on the stream of events looks after it
            return sse.EventStream(_chunks(jobs[0], form, first, body, heartbeat))
        choices: list[dict[str, Any]] = []
        told: dict[str, Any] = {}
        for job in jobs:
            replies, facts = await sse.unless_gone(request, _whole(job))
            own = Form("chat" if form.chat else "text", model.name, model.fingerprint, model.llm.tokenizer, job)
            for reply, reason in zip(replies, facts["reasons"], strict=True):
                choice = own.choice(len(choices), reply, reason)
                if echo:
                    text, likely = own.echoed()
                    choice["logprobs"] = joined(likely, own.logprobs(reply.chosen, begin=len(text)))
                    choice["text"] = text + choice["text"]
                choices.append(choice)
            told = _sum(told, facts)
        submitted = []
        headers = {"Anchorstream-Session": told["streaming"]["session"]} if "session" in told["streaming"] else {}
        return JSONResponse(form.whole(choices, told), headers=headers)
    except sse.Gone:
        return Response(status_code=499)
    finally:
        for job in submitted:
            job.cancel()


async def _whole(job: Job) -> tuple[list[Reply], dict[str, Any]]:
    replies = [Reply() for _ in range(job.wish.choices)]
    while True:
        for event in await job.outbox.take():
            if isinstance(event, Text):
                replies[event.choice].add(event)
            elif isinstance(event, Done):
                return replies, event.facts
            elif isinstance(event, Failed):
                raise event.error


async def _chunks(job: Job, form: Form, events: list[Any], body: Sampling, heartbeat: float) -> AsyncIterator[str]:
    """A reply as events. Closing this early cancels the job."""
    open_choices = list(range(job.wish.choices))
    opened = over = False
    beat = time.monotonic()
    try:
        while True:
            gathered: dict[int, Reply] = {}
            ended: list[Ended] = []
            last: Done | Failed | None = None
            for event in events:
                if isinstance(event, Admitted | Began) and not opened:
                    opened = True
                    for choice in open_choices:
                        if chunk := form.opening(choice):
                            yield sse.event(chunk)
                elif isinstance(event, Text):
                    gathered.setdefault(event.choice, Reply()).add(event)
                elif isinstance(event, Ended):
                    ended.append(event)
                elif isinstance(event, Done | Failed):
                    last = event
            for choice, reply in gathered.items():
                yield sse.event(form.delta(choice, reply))
            for each in ended:
                open_choices.remove(each.choice)
                yield sse.event(form.ending(each.choice, each.reason))
            if isinstance(last, Failed):
                over = True
                yield sse.event(as_api_error(last.error).body)
                yield sse.END
                return
            if last is not None:
                over = True
                facts = last.facts
                more = {"timings": facts["timings"], "streaming": facts["streaming"]}
                for choice in open_choices:
                    yield sse.event(form.ending(choice, facts["reasons"][choice], **more))
                if body.include_usage:
                    extra = form.usage(facts["usage"])
                    yield sse.event(extra if open_choices else {**extra, **more})
                yield sse.END
                return
            if not events and time.monotonic() - beat >= heartbeat / 2:
                yield sse.comment(f"{job.fed} of {len(job.prompt)} tokens read" if opened else "waiting")
            if events:
                beat = time.monotonic()
            events = await job.outbox.take(heartbeat)
    finally:
        if not over:
            job.cancel()


def _sum(told: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    """The facts of several prompts as one."""
    if not told:
        return more
    usage = {
        key: told["usage"][key] + more["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    }
    cached = sum(each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in (told, more))
    return {**more, "usage": {**usage, "prompt_tokens_details": {"cached_tokens": cached}}}
