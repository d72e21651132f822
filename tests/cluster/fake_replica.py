"""A replica whose stream a test writes and whose calls it reads, links to such replicas, an open door."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

from cluster.admission import Admitted, Lookup
from cluster.api.errors import ApiError
from cluster.credit import Credit, Wanted
from cluster.generation import GenerationRequest
from cluster.link import Abort, Hello, LinkDown, LinkMessage, Report, StepMessage, SubmitReply
from cluster.link_events import LinkEvents
from cluster.links import Links
from cluster.served_elsewhere import FlowService
from cluster.token_inbox import TokenInbox
from engine.counters import EngineCounters
from engine.request import Request, RequestOutput, SamplingParams
from tenants.ledger.grant import Granted
from tests.cluster.fake_books import FakeBooks, an_ask

DRAIN_LIMIT_S = 0.05
IDLE = EngineCounters(0, 0, 0, 100, 0, 0, 0.0, 0, 0, 0)


def hello(replica_id: str, hash_root: bytes = b"root") -> Hello:
    return Hello(replica_id, ord(replica_id[0]), "tiny", "r1", hash_root, 16, 512, 4, 100, 64)


def request(request_id: str = "r", n: int = 1, num_uncached_tokens: int = 3) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=(1, 2, 3),
        sampling=SamplingParams(max_tokens=8),
        hash_root=b"root",
        n=n,
        num_uncached_tokens=num_uncached_tokens,
    )


def row(
    request_id: str, first: int, *tokens: int, sibling: int = 0, finish: str | None = None
) -> RequestOutput:
    return RequestOutput(request_id, 0, sibling, first, tokens, finish_reason=finish)  # type: ignore[arg-type]


class FakeReplica:
    """A `TokenLink` whose stream the test writes and whose calls it reads."""

    def __init__(self, replica_id: str) -> None:
        self.replica_id = replica_id
        self.hash_root = b"root"
        self.submitted: list[Request] = []
        self.aborted: list[Abort] = []
        self.reports: list[Report] = []
        self.heard: asyncio.Queue[Report] = asyncio.Queue()
        """The same, for who waits for them."""
        self.reply: SubmitReply | LinkDown | asyncio.Event = SubmitReply(accepted=True)
        self.is_open = True
        """It says at once that there is credit without end."""
        self.is_unreachable = False
        """Calls to it fail; its stream goes on."""
        self.may_hear = asyncio.Event()
        """Unless it is set, reports stay on their way."""
        self.may_hear.set()
        self.num_reports_on_their_way = 0
        self.attached_again = asyncio.Event()
        self._attached = 0
        self._stream: asyncio.Queue[LinkMessage | Exception] = asyncio.Queue()

    async def submit(self, request: Request) -> SubmitReply:
        self.submitted.append(request)
        if isinstance(self.reply, asyncio.Event):
            await self.reply.wait()
            return SubmitReply(accepted=True)
        if isinstance(self.reply, LinkDown):
            raise self.reply
        return self.reply

    async def abort(self, aborts: tuple[Abort, ...]) -> None:
        if self.is_unreachable:
            raise LinkDown("it is not listed any more")
        self.aborted += aborts

    async def report(self, report: Report) -> None:
        if self.is_unreachable:
            raise LinkDown("it is not listed any more")
        self.num_reports_on_their_way += 1
        await self.may_hear.wait()
        self.num_reports_on_their_way -= 1
        self.reports.append(report)
        self.heard.put_nowait(report)

    async def attach(self) -> AsyncIterator[LinkMessage]:
        self._attached += 1
        if self._attached == 2:
            self.attached_again.set()
        yield hello(self.replica_id, self.hash_root)
        if self.is_open:
            yield StepMessage((), IDLE)
        while True:
            message = await self._stream.get()
            if isinstance(message, Exception):
                raise message
            yield message

    def say(
        self,
        *rows: RequestOutput,
        counters: EngineCounters = IDLE,
        credit: Credit | None = None,
        is_leaving: bool = False,
        served: tuple[FlowService, ...] = (),
    ) -> None:
        self._stream.put_nowait(StepMessage(rows, counters, credit, is_leaving, served))

    def die(self) -> None:
        self.fail(LinkDown("killed"))

    def fail(self, error: Exception) -> None:
        self._stream.put_nowait(error)


class LinkRig:
    def __init__(self) -> None:
        self.now = 0.0
        self.discarded = 0
        self.replicas: dict[str, FakeReplica] = {}
        self.left: list[tuple[int, Abort]] = []
        """Aborts that were left for an incarnation that could not be called."""
        self.num_credit_calls = 0
        self.on_credit: Callable[[], None] = lambda: None
        self.served: list[Sequence[FlowService]] = []
        self.links = Links(
            self.replica,
            lambda: self.now,
            LinkEvents(
                on_discarded=self._discard, on_credit=self._hear_of_credit, on_served=self.served.append
            ),
            drain_limit_s=DRAIN_LIMIT_S,
            leave_aborts=self._leave,
        )

    def replica(self, replica_id: str) -> FakeReplica:
        return self.replicas.setdefault(replica_id, FakeReplica(replica_id))

    async def _leave(self, incarnation: int, aborts: tuple[Abort, ...]) -> None:
        self.left += [(incarnation, abort) for abort in aborts]

    def _hear_of_credit(self) -> None:
        self.num_credit_calls += 1
        self.on_credit()

    def _discard(self, tokens: int) -> None:
        self.discarded += tokens

    def candidates(self) -> set[str]:
        return {load.replica_id for load in self.links.candidates()}

    def with_credit(self, wanted: Wanted | None = None) -> set[str]:
        return {load.replica_id for load in self.links.with_credit(wanted)}


class OpenDoor:
    """Lets everybody in, with what they ask for or less; or refuses. The index claims what it is told."""

    def __init__(self) -> None:
        self.refusal: ApiError | None = None
        self.may_answer: asyncio.Event | None = None
        """If there is one: nobody is answered before it is set."""
        self.max_tokens: int | None = None
        """What the budget pays for; None: everything."""
        self.claims: dict[int, int] = {}
        self.lookups: list[Lookup] = []
        self.books = FakeBooks()

    async def admit(self, request: GenerationRequest, lookups: Sequence[Lookup]) -> Admitted:
        self.lookups += lookups
        if self.may_answer is not None:
            await self.may_answer.wait()
        if self.refusal is not None:
            raise self.refusal
        asked = request.sampling.max_tokens
        ask = an_ask(
            request.request_id,
            tenant_id=request.account.tenant.tenant_id,
            prices=request.account.terms.prices,
            prompt_tokens=len(request.prompt_token_ids),
            n=request.n,
            max_tokens=asked,
        )
        granted = Granted(max_tokens=min(asked, self.max_tokens or asked), reserved_cost=0)
        return Admitted(self.books.open(ask, granted), self.claims)


async def got(inbox: TokenInbox) -> RequestOutput:
    """What comes next, waited for."""
    while (output := inbox.take()) is None:  # noqa: ASYNC110  its own event is the generation's
        await asyncio.sleep(0)
    return output


async def settle() -> None:
    """Lets everything that is ready run."""
    for _ in range(20):
        await asyncio.sleep(0)
