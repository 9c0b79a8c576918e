"""The engine's thread: each step makes one token of every running reply and reads a slice of one waiting prompt.

Everything that touches a stream happens here. Texts are cut into tokens and files are read and written by helpers, which
post what they have done; nothing here waits for a disk or a client.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

import numpy as np

from anchorstream.api import LLM
from anchorstream.cache.plan import Plan
from anchorstream.engine.base import Segment, Want
from anchorstream.errors import AnchorstreamError, OutOfMemoryError
from anchorstream.server import facts
from anchorstream.server.attention import AttentionSampler
from anchorstream.server.conversations import Conversations
from anchorstream.server.errors import ApiError
from anchorstream.server.grammar import Grammars
from anchorstream.server.job import Choice, Job
from anchorstream.server.likelihood import chosen
from anchorstream.server.metrics import Metrics
from anchorstream.server.outbox import Admitted, Began, Done, Ended, Failed, Text
from anchorstream.server.pacing import Pacing
from anchorstream.server.preparing import UnrestorableError
from anchorstream.server.settings import ServerConfig
from anchorstream.stream.generation import Generation
from anchorstream.stream.sampling import Sampler

T = TypeVar("T")
_log = logging.getLogger("anchorstream.server")


class Scheduler:
    """Runs jobs. Made by the server, one a model.

    Args:
        llm: the model; from now on no other thread may use it.
        config: limits.
        conversations: what is known of earlier turns.
        metrics: what is counted.
    """

    def __init__(self, llm: LLM, config: ServerConfig, conversations: Conversations, metrics: Metrics) -> None:
        self._llm = llm
        self._config = config
        self._conversations = conversations
        self._metrics = metrics
        self._attention = AttentionSampler(metrics)
        self._grammars = Grammars(llm.tokenizer)
        self._pacing = Pacing(llm.engine.chunk_size)
        self._inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._helpers = ThreadPoolExecutor(2, thread_name_prefix="prepare")
        self._waiting: deque[Job] = deque()
        self._preparing: set[Job] = set()
        self._reading: deque[Job] = deque()
        self._replying: list[Job] = []
        self._submitted = 0
        self._lock = threading.Lock()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # ---- for other threads ----

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Take a job on.

        Raises:
            ApiError: 429 where too many wait, 503 where the server is going down.
        """
        with self._lock:
            if self._stopping:
                raise ApiError(503, "the server is shutting down", code="shutting_down", retry_after=5)
            if self._submitted >= self._config.parallel + self._config.queue:
                self._metrics.refused.inc()
                wait = max(1, round(self._metrics.typical_seconds() * self._submitted / self._config.parallel))
                raise ApiError(
                    429,
                    f"{self._submitted} requests are waiting or running: try again later",
                    code="queue_full",
                    retry_after=wait,
                )
            self._submitted += 1
        self._inbox.put(lambda: self._waiting.append(job))

    def post(self, work: Callable[[], None]) -> None:
        """Do something between two steps, without waiting for it."""
        self._inbox.put(work)

    def call(self, work: Callable[[], T]) -> Future[T]:
        """Do something between two steps."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:
                future.set_exception(error)

        self._inbox.put(run)
        return future

    def stop(self, patience: float = 3.0) -> None:
        """Let running replies end for `patience` seconds, break off the rest as turns that were cut, and stop."""
        with self._lock:
            self._stopping = True
        self._inbox.put(lambda: None)
        self._thread.join(patience)
        if self._thread.is_alive():
            self.call(self._break_off)
            self._thread.join(2.0)
        self._helpers.shutdown(wait=False, cancel_futures=True)

    @property
    def load(self) -> dict[str, int]:
        """How many jobs are at which stage."""
        return {
            "waiting": len(self._waiting) + len(self._preparing),
            "reading": len(self._reading),
            "replying": len(self._replying),
        }

    # ---- the thread ----

    def _run(self) -> None:
        while True:
            try:
                busy = bool(self._reading or self._replying)
                self._take_in(wait=not busy)
                if self._stopping and not (self._waiting or self._preparing or self._reading or self._replying):
                    return
                self._drop_cancelled()
                self._admit()
                self._step()
                self._metrics.stages(self.load)
            except Exception:
                _log.exception("a step failed")
                self._fail_all()

    def _take_in(self, *, wait: bool) -> None:
        try:
            if wait:
                self._inbox.get(timeout=0.5)()
            while True:
                self._inbox.get_nowait()()
        except Empty:
            pass

    def _drop_cancelled(self) -> None:
        for job in [job for job in self._waiting if job.cancelled]:
            self._waiting.remove(job)
            self._gone(job)
        for job in [job for job in self._reading if job.cancelled or job.outbox.full]:
            self._reading.remove(job)
            self._conversations.roll_back(job)
            self._gone(job)
        for job in [job for job in self._replying if job.cancelled or job.outbox.full]:
            for choice in job.choices:
                if choice.reason is None:
                    choice.reason = "cancelled"
                    self._metrics.finished("cancelled")
            self._end(job)

    def _gone(self, job: Job) -> None:
        self._metrics.finished("cancelled")
        self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._submitted -= 1

    def _admit(self) -> None:
        """Let waiting jobs begin, in the order in which they came; those of one conversation one after the other."""
        held: set[str] = set()
        for job in list(self._waiting):
            if len(self._preparing) + len(self._reading) + len(self._replying) >= self._config.parallel:
                return
            if job.session_name is not None:
                if job.session_name in held:
                    continue
                if self._conversations.is_busy(job.session_name):
                    held.add(job.session_name)
                    continue
            self._waiting.remove(job)
            job.started = time.perf_counter()
            self._metrics.waited.observe(job.started - job.submitted)
            try:
                work = self._conversations.locate(job) if job.request else None
            except Exception as error:
                if not self._refuse(job, error):
                    return
                continue
            self._preparing.add(job)
            self._helpers.submit(self._prepare, job, work)

    def _prepare(self, job: Job, work: Callable[[], Any] | None) -> None:
        """By a helper: cut the text, read the file, parse the grammar."""
        found: Any = None
        failure: Exception | None = None
        try:
            if not job.cancelled:
                if job.wish.grammar is not None:
                    job.constraints = [self._grammars.json(job.wish.grammar) for _ in range(job.wish.choices)]
                found = work() if work else None
        except Exception as error:
            failure = error
        self._inbox.put(lambda: self._prepared(job, found, failure))

    def _prepared(self, job: Job, found: Any, failure: Exception | None) -> None:
        self._preparing.discard(job)
        try:
            if failure is not None:
                raise failure
            if job.cancelled:
                self._conversations.roll_back(job)
                self._gone(job)
                return
            self._conversations.begin(job, found)
        except Exception as error:
            self._refuse(job, error)
        else:
            job.outbox.put(Admitted())
            if job.unread:
                self._reading.append(job)
            else:
                self._begin_replies(job)

    def _refuse(self, job: Job, error: Exception) -> bool:
        """A job cannot begin. False where it will be tried again, when another has ended and there is room."""
        self._conversations.roll_back(job)
        if isinstance(error, UnrestorableError):
            lost = self._conversations.give_up(job, error)
            if lost is None:
                self._waiting.appendleft(job)
                return True
            error = lost
        if isinstance(error, OutOfMemoryError) and (self._reading or self._replying):
            self._waiting.appendleft(job)
            return False
        self._failed(job, error)
        return True

    def _failed(self, job: Job, error: BaseException) -> None:
        if not isinstance(error, AnchorstreamError | ApiError):
            _log.error("a request failed", exc_info=error)
        self._metrics.finished("error")
        job.outbox.put(Failed(error))
        self._leave()

    # ---- a step ----

    def _step(self) -> None:
        begin = time.perf_counter()
        passes: list[tuple[Segment, Callable[[Plan, Any], None], Job]] = []
        for job in list(self._replying):
            for choice in job.choices:
                if choice.reason is None and (planned := self._next_token(job, choice)):
                    passes.append((*planned, job))
            if all(choice.reason is not None for choice in job.choices):
                self._end(job)
        replies = len(passes)
        read = 0
        if self._reading:
            job = self._reading[0]
            size = self._pacing.slice(replies)
            if size:
                self._reading.rotate(-1)
                segment, note, read = self._slice(job, size)
                passes.append((segment, note, job))
        if passes:
            self._compute(passes)
            self._pacing.took(time.perf_counter() - begin, replies, read)

    def _next_token(self, job: Job, choice: Choice) -> tuple[Segment, Callable[[Plan, Any], None]] | None:
        stream, generation = choice.stream, choice.generation
        try:
            logits = stream.logits
            token = generation.choose(logits, stream.recent(generation.looks_back))
        except AnchorstreamError as error:
            self._break(job, error)
            return None
        if token is None:
            self._say(job, choice, None, None)
            return None
        likely = None if job.wish.logprobs is None else chosen(logits, token, job.wish.logprobs)
        choice.tokens.append(token)
        ids = np.array([token], np.int32)

        segment = stream.segment(ids, attention=self._attention.due())

        def note(plan: Plan, output: Any) -> None:
            stream.commit(ids, plan, output)
            if segment.attention is not None:
                self._attention.saw(stream, segment.attention)
            now = time.perf_counter()
            if choice.last_time:
                self._metrics.between.observe(now - choice.last_time)
            else:
                self._metrics.first.observe(now - job.submitted)
            choice.last_time = now
            self._metrics.generated.inc()
            self._say(job, choice, token, likely)

        return segment, note

    def _say(self, job: Job, choice: Choice, token: int | None, likely: Any) -> None:
        text = choice.generation.push(token)
        if text:
            choice.texts.append(text)
        if text or likely:
            job.outbox.put(Text(choice.number, text, likely, token))
        if choice.generation.finished:
            choice.reason = choice.generation.finish_reason
            self._metrics.finished(choice.reason or "stop")
            if job.wish.choices > 1:
                job.outbox.put(Ended(choice.number, choice.reason or "stop"))

    def _slice(self, job: Job, size: int) -> tuple[Segment, Callable[[Plan, Any], None], int]:
        stream = job.stream
        assert stream is not None
        end = min(job.fed + size, job.next_cut)
        ids = job.prompt[job.fed : end]
        last = end == len(job.prompt)
        want: Want = "last" if last else "nothing"
        targets = None
        if job.wish.echo:
            want = "all" if job.wish.logprobs else want
            targets = np.append(job.prompt[job.fed + 1 : end + 1], [-1] if last else []).astype(np.int32)

        def note(plan: Plan, output: Any) -> None:
            if want == "all":
                rows = output.logits
                job.echoed += [
                    chosen(row, int(target), job.wish.logprobs or 0)
                    for row, target in zip(rows, targets if targets is not None else (), strict=True)
                    if target >= 0
                ]
                output = output._replace(logits=rows[-1].copy() if last else None)
            elif targets is not None:
                job.echoed += [-float(nll) for nll, target in zip(output.nll, targets, strict=True) if target >= 0]
            stream.commit(ids, plan, output)
            job.fed = end
            self._metrics.read.inc(len(ids))
            try:
                self._conversations.reached(job)
            except AnchorstreamError as error:
                self._break(job, error)
                return
            if last:
                self._reading.remove(job)
                self._begin_replies(job)

        return stream.segment(ids, want=want, targets=targets), note, len(ids)

    def _begin_replies(self, job: Job) -> None:
        wish, stream = job.wish, job.stream
        assert stream is not None
        try:
            self._conversations.asked(job)
            streams = [stream, *self._conversations.copies(stream, wish.choices - 1)]
        except Exception as error:
            self._conversations.roll_back(job)
            self._failed(job, error)
            return
        job.read = time.perf_counter()
        job.outbox.put(Began())
        for number, own in enumerate(streams):
            sampling = wish.sampling
            if number and sampling.seed is not None:
                sampling = replace(sampling, seed=sampling.seed + number)
            constraint = job.constraints[number] if job.constraints else None
            sampler = Sampler(sampling, self._llm.spec.vocab_size)
            generation = Generation(self._llm.tokenizer, sampler, wish.limits, constraint)
            job.choices.append(Choice(number, own, generation))
            if generation.finished:  # nothing is to be made
                job.choices[-1].reason = generation.finish_reason
        self._replying.append(job)

    def _compute(self, passes: list[tuple[Segment, Callable[[Plan, Any], None], Job]]) -> None:
        try:
            outputs: list[Any] = list(self._llm.engine.forward([segment for segment, _, _ in passes]))
        except Exception as error:
            if len(passes) == 1:
                self._break(passes[0][2], error)
                return
            outputs = []
            for segment, note, job in passes:  # one by one, so that one does not fail the others
                self._compute([(segment, note, job)])
            return
        for (segment, note, _), output in zip(passes, outputs, strict=True):
            note(segment.plan, output)

    def _break(self, job: Job, error: BaseException) -> None:
        """A job fails in the middle."""
        if job in self._reading:
            self._reading.remove(job)
        if job in self._replying:
            self._replying.remove(job)
        self._conversations.roll_back(job)
        self._failed(job, error)

    def _end(self, job: Job) -> None:
        """All of a job's replies have ended: keep what it leaves, and then tell its client."""
        self._replying.remove(job)
        job.ended = time.perf_counter()
        self._metrics.took(job)
        try:
            told = facts.of(job)
            self._metrics.evicted_tokens.inc(max(0, told["streaming"]["evicted_by_request"]))
            self._metrics.evicted_turns.inc(told["streaming"].pop("evicted_turns_by_request", 0))
            told["reasons"] = [choice.reason for choice in job.choices]
            self._keep(job, told)
        except Exception as error:
            self._conversations.roll_back(job)
            self._failed(job, error)

    def _keep(self, job: Job, told: dict[str, Any]) -> None:
        def tell(failure: BaseException | None) -> None:
            if failure is not None:
                _log.error("a turn could not be kept on disk: %s", failure)
                told["streaming"]["kept"] = False
            job.outbox.put(Done(told))
            self._leave()

        self._conversations.keep(job, tell)

    def _break_off(self) -> None:
        for job in [*self._waiting, *self._reading, *self._replying]:
            job.cancel()
        for job in list(self._preparing):
            job.cancel()

    def _fail_all(self) -> None:
        """Something that we did not foresee: no job may be left hanging."""
        error = ApiError(500, "the server failed; its log says more", code="internal_error")
        for job in [*self._waiting, *self._reading, *self._replying]:
            for stage in (self._waiting, self._reading, self._replying):
                if job in stage:
                    stage.remove(job)
            try:
                self._conversations.roll_back(job)
            except Exception:
                _log.exception("a conversation could not be rolled back")
            self._failed(job, error)
