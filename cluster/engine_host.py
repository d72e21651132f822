"""An engine core in a thread of its own, with a mailbox in and one stream a gateway.

The engine thread owns the core and all that belongs to it; others post calls into its mailbox. What
a step made is encoded there, one message a gateway, and handed to the event loop as bytes. Knows
no Ray: `cluster/replica.py` is the thin deployment around it, tests use it as it is.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import Executor, Future
from functools import partial

from cluster.admission_windows import RAMP_S, AdmissionWindows
from cluster.early_aborts import EarlyAborts
from cluster.gateway_accounts import GatewayAccounts, News
from cluster.gateway_streams import GatewayStreams
from cluster.integrity_watch import IntegrityWatch
from cluster.link import LEAVING, OCCUPIED, Abort, Hello, NotReached, Report, StepMessage, SubmitReply, encode
from engine.core import MAX_FAILED_STEPS, EngineCore
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput
from engine.scheduler import RequestRefused
from engine.watchdog import Watchdog

log = logging.getLogger("headrace.engine")

WATCH_EVERY_S = 0.5
WATCHDOG_S = 5.0
FLUSH_GRACE_S = 0.25
"""What was made before the end still leaves in this time."""
IDLE_CHECK_S = 1.0


class EngineDead(RuntimeError):
    """The engine thread has ended; the process should, too."""


class EngineHost:
    """Owns the engine thread and its mailbox; `GatewayAccounts` knows whose each request is, and its window.

    `on_step(outputs, seconds, executor_seconds)` is called in the engine thread after every step, for
    metrics. `on_fatal` is called once, on the event loop, when the engine thread failed or stood
    still for `watchdog_s` with work to do.
    """

    def __init__(
        self,
        core: EngineCore,
        hello: Hello,
        clock: Callable[[], float],
        *,
        on_step: Callable[[list[RequestOutput], float, float], None] = lambda *step: None,
        on_integrity_error: Callable[[], None] = lambda: None,
        on_fatal: Callable[[BaseException], None] = lambda error: None,
        watchdog_s: float = WATCHDOG_S,
        ramp_s: float = RAMP_S,
    ) -> None:
        self._core = core
        self._clock = clock
        self._on_step = on_step
        self._on_fatal = on_fatal
        self._mailbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._accounts = GatewayAccounts(
            AdmissionWindows(hello.max_num_batched_tokens, hello.max_num_seqs, ramp_s)
        )
        self._suspects: set[str] = set()
        """At most one, of any gateway, until its first output: if this replica dies, too, that was it."""
        self._aborted_early = EarlyAborts()
        self._streams = GatewayStreams(
            encode(hello),
            self._heartbeat,
            on_attach=partial(self._post, self._open_gateway),
            on_break=partial(self._post, self._close_gateway),
        )
        self._counters = core.counters()
        self._is_count_due = False
        self._running: Future[None] = Future()
        self._watchdog = Watchdog(watchdog_s, clock())
        self._step_begun: float | None = None
        self._dead_because: str | None = None
        self._is_leaving = False
        self._has_taken_last = False
        self._integrity = IntegrityWatch(core.check_integrity, on_integrity_error, clock())

    # --- the event loop's side -------------------------------------------------------------

    def start(self, loop: asyncio.AbstractEventLoop, thread: Executor) -> None:
        """`thread` has one worker, which is the engine's until `stop`.

        Load the model in it, too: OpenMP keeps a pool for each thread that computes, and with two
        pools on the same cores it stops spinning and steps take twice as long (`NOTES.md`).
        """
        self._loop = loop
        self._running = thread.submit(self._run)
        loop.call_later(WATCH_EVERY_S, self._watch)

    def stop(self) -> None:
        """Ends the thread after its current step and every attached stream. Blocks for that step."""
        self._mailbox.put(None)
        self._running.result()
        self._streams.close()

    def leave(self) -> None:
        """Refuses all submits from now on and tells every gateway at once; what runs goes on."""
        self._is_leaving = True
        self._mailbox.put(self._take_last)
        self._streams.beat()

    @property
    def has_finished(self) -> bool:
        """After `leave`: nothing is left of what was accepted before, and each gateway has read the end.

        They close their streams then.
        """
        return self._has_taken_last and not self._accounts.num_live and not len(self._streams)

    def check(self) -> None:
        if self._dead_because is not None:
            raise EngineDead(self._dead_because)
        if self._running.done():
            raise EngineDead("the engine thread has ended")

    def _watch(self) -> None:
        """Looks whether the engine advances, for as long as it runs."""
        if self._running.done() or self._dead_because is not None:
            return
        now = self._clock()
        has_work = bool(self._accounts.num_live) or not self._mailbox.empty()
        self._watchdog.observe(self._counters, has_work=has_work, now=now)
        if self._watchdog.is_stalled(now):
            reason = self._watchdog.explain(self._counters, step_begun=self._step_begun, now=now)
            log.critical("the engine stands still: %s", reason)
            self._die(EngineDead(reason))
        else:
            self._loop.call_later(WATCH_EVERY_S, self._watch)

    def _die(self, error: BaseException) -> None:
        """From now on every check fails; the end follows when the last messages have left."""
        if self._dead_because is not None:
            return
        self._dead_because = str(error) or type(error).__name__
        self._loop.call_later(FLUSH_GRACE_S, self._on_fatal, error)

    @property
    def counters(self) -> EngineCounters:
        """As of the last step."""
        return self._counters

    def submit(self, gateway_id: str, request: Request) -> SubmitReply:
        """Accepts or refuses at once; nothing waits for a step.

        Raises `NotReached` if the engine is dead, or the gateway's stream broken: it would hear nothing.
        """
        if self._dead_because is not None or self._running.done():
            raise NotReached("the engine has ended")
        if gateway_id not in self._streams:  # it may have come after the end of a gateway that was killed
            raise NotReached("this gateway has no stream here")
        if self._is_leaving:
            return SubmitReply(accepted=False, code=LEAVING, message="this replica takes no more requests")
        try:
            self._core.check_fits(request)
        except RequestRefused as refusal:
            return SubmitReply(accepted=False, code=refusal.code, message=refusal.message)
        if request.is_suspect:
            if self._suspects:
                return SubmitReply(accepted=False, code=OCCUPIED)
            self._suspects.add(request.request_id)
        self._post(self._add, gateway_id, request, self._clock())
        return SubmitReply(accepted=True)

    def abort(self, aborts: Iterable[Abort]) -> None:
        self._post(self._abort, tuple(aborts))

    def report(self, gateway_id: str, report: Report) -> None:
        self._post(self._accounts.report, gateway_id, report.backlogs)

    def attach(self, gateway_id: str) -> AsyncIterator[bytes]:
        """The gateway's stream: hello, then a message a step, and one each `HEARTBEAT_S` of silence.

        Its end, or a new one of the same gateway, aborts what was running for it.
        """
        return self._streams.attach(gateway_id)

    def _post(self, call: Callable[..., None], *args: object) -> None:
        self._mailbox.put(partial(call, *args))

    def _heartbeat(self, gateway_id: str) -> bytes:
        return self._message(News((), self._accounts.told(gateway_id)))

    # --- the engine thread's side ----------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._take_mail():
                if self._core.has_work():
                    self._step()
        except BaseException as error:
            log.exception("the engine thread failed")
            self._loop.call_soon_threadsafe(self._die, error)

    def _take_mail(self) -> bool:
        """Makes all posted calls; waits for one when there is nothing to compute. False: stop."""
        while True:
            if self._is_count_due and self._mailbox.empty():
                self._count()
            try:
                call = self._mailbox.get(block=not self._core.has_work(), timeout=IDLE_CHECK_S)
            except queue.Empty:
                if self._core.has_work():
                    return True
                self._deliver(())  # windows move with time, too
                self._integrity.look(self._clock())
                continue
            if call is None:
                return False
            call()

    def _step(self) -> None:
        begun, executor_s = self._clock(), self._core.executor_s
        self._step_begun = begun
        outputs = self._core.step()
        self._step_begun = None
        self._count()
        self._on_step(outputs, self._clock() - begun, self._core.executor_s - executor_s)
        self._deliver(outputs)
        if self._core.is_broken:
            raise EngineDead(f"the last {MAX_FAILED_STEPS} steps failed")

    def _deliver(self, outputs: Sequence[RequestOutput]) -> None:
        for output in outputs:
            self._suspects.discard(output.request_id)
        for gateway_id, news in self._accounts.news(outputs, self._clock()).items():
            self._loop.call_soon_threadsafe(self._streams.put, gateway_id, self._message(news))

    def _message(self, news: News) -> bytes:
        return encode(StepMessage(news.outputs, self._counters, news.window, self._is_leaving, news.served))

    def _take_last(self) -> None:
        self._has_taken_last = True

    def _add(self, gateway_id: str, request: Request, arrival_s: float) -> None:
        if self._aborted_early.has(request.request_id, self._clock()):
            self._suspects.discard(request.request_id)
            return
        if request.request_id in self._accounts:
            log.warning("a live request's id came again and was dropped")
            return
        self._accounts.add(gateway_id, request)
        try:
            self._core.add(request, arrival_s)
        except RequestRefused as refusal:
            self._deliver(_refused(request, refusal))
        self._is_count_due = True  # once for all that wait in the mailbox: counting is O(requests)

    def _abort(self, aborts: Iterable[Abort]) -> None:
        outputs: list[RequestOutput] = []
        for abort in aborts:
            if abort.request_id in self._accounts:
                outputs += self._core.abort(abort.request_id, abort.sibling)
            elif abort.sibling is None:
                self._aborted_early.note(abort.request_id, self._clock())
        self._count()
        self._deliver(outputs)

    def _count(self) -> None:
        self._counters = self._core.counters()
        self._is_count_due = False

    def _open_gateway(self, gateway_id: str) -> None:
        self._close_gateway(gateway_id)
        self._accounts.open(gateway_id, self._clock())
        self._deliver(())

    def _close_gateway(self, gateway_id: str) -> None:
        self._accounts.close(gateway_id)
        self._abort([Abort(request_id) for request_id in self._accounts.requests_of(gateway_id)])


def _refused(request: Request, refusal: RequestRefused) -> list[RequestOutput]:
    return [
        RequestOutput(
            request_id=request.request_id,
            attempt=request.attempt,
            sibling=sibling,
            first_output_index=len(request.output_token_ids),
            token_ids=(),
            finish_reason="error",
            error_code=refusal.code,
        )
        for sibling in range(request.sibling, request.sibling + request.n)
    ]
