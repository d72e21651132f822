"""A gateway without a cluster: scripted generations, a clock that is told, an ASGI client that can leave."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from cluster.api.app import build_app
from cluster.api.services import Services
from cluster.autoscaling.view import ClusterStatus
from cluster.generation import GenerationRequest, TextDelta, Usage
from cluster.golden import GoldenPrompt
from cluster.rollout.rollout import Rollout
from cluster.telemetry import Telemetry
from engine.chat_template import ChatTemplate
from engine.request import Timing
from engine.tokenizer import ByteTokenizer
from tenants.api_key import ApiKey, Scope, hash_key, new_key, new_key_id
from tenants.audit import LAUNCHER
from tenants.auth import Authenticator
from tenants.ledger.grant import Standing
from tenants.ledger.memory_ledger import MemoryLedger
from tenants.ledger.settlement import Outcome
from tenants.outcomes.memory_outcomes import MemoryOutcomes
from tenants.store import Conflict, NotFound, StoreUnavailable
from tenants.store_memory import MemoryTenantStore
from tenants.tenant import Tenant
from tests.cluster.fake_spool import FakeSpool
from tests.cluster.scaling_world import make_status

SECRET = b"a secret of the tests"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}<|im_start|>"
)
WALL_TIME = 1_700_000_000.0
PATIENCE_S = 10


async def settle() -> None:
    """Lets everything run that can run without time passing."""
    for _ in range(50):
        await asyncio.sleep(0)


class FakeTime:
    """A clock and its `sleep`; both move only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def advance(self, seconds: float) -> None:
        """Time passes; sleepers wake one by one, each at its own time."""
        await settle()
        until = self.now + seconds
        while self._sleepers and self._sleepers[0][0] <= until:
            due, _, woken = heapq.heappop(self._sleepers)
            self.now = max(self.now, due)
            if not woken.done():
                woken.set_result(None)
                await settle()
        self.now = until
        await settle()


@dataclass
class Gate:
    """A point in a script that waits until the test opens it."""

    opened: asyncio.Event = field(default_factory=asyncio.Event)

    def open(self) -> None:
        self.opened.set()


Step = TextDelta | Exception | Gate


def say(*texts: str, finish: str = "stop", sibling: int = 0) -> list[Step]:
    """Texts one by one; the last one ends the answer."""
    last = TextDelta(texts[-1], finish, sibling)  # type: ignore[arg-type]
    return [*(TextDelta(text, None, sibling) for text in texts[:-1]), last]


class FakeGeneration:
    """Plays a script. Each delta counts as one token."""

    replica_id = "replica-1"

    def __init__(self, script: Sequence[Step], num_prompt_tokens: int, max_tokens: int) -> None:
        self._script = script
        self._num_prompt_tokens = num_prompt_tokens
        self._num_tokens = 0
        self.timing: Timing | None = None
        self.waited_s = 0.25
        self.max_tokens = max_tokens
        self.standing = Standing()
        self.outcomes: list[Outcome] = []

    @property
    def usage(self) -> Usage:
        return Usage(self._num_prompt_tokens, self._num_tokens, cached_tokens=min(3, self._num_prompt_tokens))

    async def deltas(self) -> AsyncIterator[TextDelta]:
        for step in self._script:
            if isinstance(step, Gate):
                await step.opened.wait()
            elif isinstance(step, Exception):
                raise step
            else:
                self._num_tokens += 1
                if step.finish_reason is not None:
                    self.timing = Timing(0.5, 0.0, 0.0, 0.0, 0)
                yield step

    def end(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


class FakeGenerator:
    """Gives every request the same script. `before` is played before a replica accepts."""

    def __init__(self) -> None:
        self.script: list[Step] = say("Hello", " world")
        self.before: list[Gate | Exception] = []
        self.requests: list[GenerationRequest] = []
        self.generations: list[FakeGeneration] = []
        self.num_cancelled_starts = 0
        self.max_tokens: int | None = None
        """What it grants; None: what is asked for."""

    @property
    def last(self) -> GenerationRequest:
        return self.requests[-1]

    async def start(self, request: GenerationRequest) -> FakeGeneration:
        self.requests.append(request)
        try:
            for step in self.before:
                if isinstance(step, Exception):
                    raise step
                await step.opened.wait()
        except asyncio.CancelledError:
            self.num_cancelled_starts += 1
            raise
        max_tokens = self.max_tokens or request.sampling.max_tokens
        generation = FakeGeneration(self.script, len(request.prompt_token_ids), max_tokens)
        self.generations.append(generation)
        return generation


class InlineExecutor(Executor):
    """Does work at once, so that no test waits for a thread."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class MemoryRollouts:
    """Rollouts without a launcher: none ever goes on."""

    def __init__(self) -> None:
        self.asked: list[Rollout] = []
        self.golden: list[GoldenPrompt] = []

    async def ask(self, rollout: Rollout, golden: Sequence[GoldenPrompt]) -> None:
        if self.asked:
            raise Conflict(f"rollout {self.asked[0].rollout_id} is not over yet")
        self.asked.append(rollout)
        self.golden += golden

    async def get(self, rollout_id: str) -> Rollout:
        for rollout in self.asked:
            if rollout.rollout_id == rollout_id:
                return rollout
        raise NotFound(f"there is no rollout {rollout_id}")

    async def list_all(self) -> list[Rollout]:
        return list(self.asked)


class ToldStatus:
    """What the launcher has told; None: nothing of late."""

    def __init__(self) -> None:
        self.told: ClusterStatus | None = make_status()

    async def status(self) -> ClusterStatus:
        if self.told is None:
            raise StoreUnavailable("the launcher tells nothing")
        return self.told


class FakeGateway:
    """The real app over fakes, and a key of each scope."""

    def __init__(
        self, *, tier: str = "paid", overrides: Mapping[str, Any] | None = None, **services: Any
    ) -> None:
        self.time = FakeTime()
        self.wall_time = WALL_TIME
        self.generator = FakeGenerator()
        self.store = MemoryTenantStore()
        self.tenant = Tenant(
            tenant_id="acme", name="Acme", tier=tier, overrides=overrides or {}, created_at=WALL_TIME
        )
        self.telemetry = Telemetry(dict)
        self.keys: dict[str, str] = {}
        tokenizer = ByteTokenizer()
        ledger = MemoryLedger(lambda: int(WALL_TIME * 10**6))
        defaults: dict[str, Any] = {
            "generator": self.generator,
            "authenticator": Authenticator(self.store, SECRET, lambda: self.wall_time),
            "store": self.store,
            "ledger": ledger,
            "adjust": FakeSpool(ledger).adjust,
            "rollouts": MemoryRollouts(),
            "status": ToldStatus(),
            "outcomes": MemoryOutcomes(self.time),
            "secret": SECRET,
            "tokenizer": tokenizer,
            "chat_template": ChatTemplate(TEMPLATE, tokenizer),
            "model_name": "tiny",
            "aliases": ("small",),
            "max_model_len": lambda: 100,
            "max_num_seqs": 32,
            "ready": lambda: True,
            "telemetry": self.telemetry,
            "clock": self.time,
            "sleep": self.time.sleep,
            "wall_clock": lambda: self.wall_time,
            "tokenizer_pool": InlineExecutor(),
            "draw_seed": lambda: 7,
        }
        self.services = Services(**{**defaults, **services})
        self.app: FastAPI = build_app(self.services)

    async def open(self) -> FakeGateway:
        await self.store.create_tenant(self.tenant, LAUNCHER)
        for scope in ("inference", "metrics", "admin", "admin:read"):
            self.keys[scope] = await self._make_key(scope)
        return self

    async def _make_key(self, scope: Scope) -> str:
        key = new_key()
        record = ApiKey(
            key_id=new_key_id(),
            tenant_id=self.tenant.tenant_id,
            key_hash=hash_key(SECRET, key),
            scopes=(scope,),
            hint=key[-4:],
            created_at=WALL_TIME,
        )
        await self.store.create_key(record, LAUNCHER)
        return key

    async def call(self, method: str, path: str, **request: Any) -> Call:
        """Sends a request and waits for the end of its answer."""
        return await self.begin(method, path, **request).finished()

    async def post(self, path: str, body: Any, **request: Any) -> Call:
        return await self.call("POST", path, body=body, **request)

    def begin(
        self,
        method: str,
        path: str,
        *,
        body: Any = b"",
        scope: str | None = "inference",
        headers: dict[str, str] | None = None,
        chunks: list[bytes] | None = None,
        **receiver: Any,
    ) -> Call:
        """Sends a request. `body` is bytes, or a value that becomes JSON; `chunks` are sent one by one."""
        whole = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"content-type": "application/json", **(headers or {})}
        if scope is not None:
            sent.setdefault("authorization", f"Bearer {self.keys[scope]}")
        return Call(self.app, method, path, sent, chunks or [whole], **receiver)


class Call:
    """One request on its own connection, as an ASGI server would drive it."""

    def __init__(
        self,
        app: ASGIApp,
        method: str,
        path: str,
        headers: dict[str, str],
        chunks: list[bytes],
        *,
        is_body_complete: bool = True,
        reads: bool = True,
    ) -> None:
        self._chunks = list(chunks)
        self._is_body_complete = is_body_complete
        self._left = asyncio.Event()
        self._reads = asyncio.Event()
        if reads:
            self._reads.set()
        self.messages: list[Any] = []
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()],
            "client": ("192.0.2.1", 1),
            "server": ("gateway", 80),
        }
        self.task = asyncio.ensure_future(app(scope, self._receive, self._send))

    async def finished(self) -> Call:
        """The end of the call. One that never comes is a failure, not a hang."""
        async with asyncio.timeout(PATIENCE_S):
            await self.task
        return self

    def leave(self) -> None:
        self._left.set()

    def read_on(self) -> None:
        self._reads.set()

    @property
    def num_unread(self) -> int:
        """Chunks of the body that nobody asked for."""
        return len(self._chunks)

    @property
    def is_committed(self) -> bool:
        return bool(self.messages)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.messages[0]["headers"]}

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages[1:])

    @property
    def is_complete(self) -> bool:
        last = self.messages[-1] if self.messages else {"type": None}
        return last["type"] == "http.response.body" and not last.get("more_body", False)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """The error object of a JSON answer, with exactly the fields that OpenAI's have."""
        error = self.json()["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[Any]:
        """What the stream said: JSON of each event, `[DONE]`, and comments as they are."""
        blocks = self.body.decode().split("\n\n")
        assert blocks.pop() == ""
        return [_event(block) for block in blocks]

    async def _receive(self) -> Any:
        if self._chunks:
            body = self._chunks.pop(0)
            return {
                "type": "http.request",
                "body": body,
                "more_body": bool(self._chunks) or not self._is_body_complete,
            }
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self._reads.wait()
        if not self._left.is_set():
            self.messages.append(message)


def _event(block: str) -> Any:
    if block.startswith(":"):
        return block
    assert block.startswith("data: ")
    data = block.removeprefix("data: ")
    return data if data == "[DONE]" else json.loads(data)
