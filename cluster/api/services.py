"""What the handlers work with, put together once by the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

from cluster.api.pace import Timings
from cluster.api.recorders import Recorders
from cluster.autoscaling.store import StatusSource
from cluster.generation import Generator
from cluster.rollout.store import Rollouts
from cluster.telemetry import Telemetry
from engine.chat_template import ChatTemplate
from engine.tokenizer import Tokenizer
from tenants.auth import Authenticator
from tenants.ledger.adjustment import Adjustment
from tenants.ledger.ledger import Ledger
from tenants.outcomes.outcome import OutcomeStore
from tenants.store import TenantStore


@dataclass(frozen=True, kw_only=True)
class Services:
    """One gateway's own. `clock` is monotonic and `wall_clock` Unix time, both in seconds; `sleep`
    waits on `clock`. `draw_seed` gives 0 … 2^64 − 1 for requests that bring no seed.
    """

    generator: Generator
    authenticator: Authenticator
    store: TenantStore
    ledger: Ledger
    adjust: Callable[[Adjustment], Awaitable[None]]
    """On this gateway's disk first, then in the ledger. Raises `OSError`, and nothing has happened, or
    `StoreUnavailable`, and it is in force later (`tenants/spool/settler.py`)."""
    rollouts: Rollouts
    status: StatusSource
    outcomes: OutcomeStore
    secret: bytes
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    """None: the model has none, and chat is refused."""
    model_name: str
    aliases: tuple[str, ...] = ()
    max_model_len: Callable[[], int]
    """Prompt + output, in tokens; 0 while no replica has said."""
    max_num_seqs: int
    """What a replica runs at once, and so the most siblings of one request."""
    ready: Callable[[], bool]
    telemetry: Telemetry
    clock: Callable[[], float]
    wall_clock: Callable[[], float]
    tokenizer_pool: Executor
    """Tokenising happens there, off the event loop."""
    draw_seed: Callable[[], int]
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    timings: Timings = field(default_factory=Timings)
    recorders: Recorders = field(default_factory=Recorders)
