"""What the prefix index costs: a Redis filled with blocks, then look-ups one after the other.

The blocks are those of prompts of equal length. Of each prompt one replica holds all, and every other one
a random part of its beginning, so that a look-up parts into as many searches as there are replicas: the
dear case. A prompt that is looked up follows a known one to a random block and is new from there.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from random import Random
from typing import Any, NamedTuple

from redis.asyncio import Redis

from cluster.index.prefix_index import INDEX_EVERY, Changes, IndexUnavailable, indexed
from cluster.index.redis_index import RedisPrefixIndex
from loadtest.percentiles import percentiles

MAX_LOOKUP_P50_MS = 0.7
MAX_SERVER_MEAN_MS = 0.3
_HASH_BYTES = 16
_BLOCKS_A_CALL = 2048
"""KV blocks, of whole prompts of one tenant."""
_TRIES = 10
"""Of a call that fills: on a busy machine one may not end in time, and repeating it is harmless."""
_WARM_UP = 50


@dataclass(frozen=True)
class IndexLoad:
    min_blocks: int = 1_000_000
    """KV blocks known to the cluster, each counted once, rounded up to whole prompts. One in `INDEX_EVERY`
    has an entry."""
    num_replicas: int = 4
    prompt_blocks: int = 256
    num_lookups: int = 2000
    seed: int = 0

    @property
    def num_prompts(self) -> int:
        return ceil(self.min_blocks / self.prompt_blocks)

    @property
    def num_blocks(self) -> int:
        return self.num_prompts * self.prompt_blocks

    @property
    def prompts_a_call(self) -> int:
        return max(1, _BLOCKS_A_CALL // self.prompt_blocks)

    def prompt(self, number: int) -> BenchPrompt:
        rng = Random(self.seed << 32 | number)
        keeper = rng.randrange(self.num_replicas)
        return BenchPrompt(
            root=(number // self.prompts_a_call).to_bytes(_HASH_BYTES, "little"),
            blocks=_hashes(rng, self.prompt_blocks),
            depths=tuple(
                self._most if replica == keeper else rng.randint(0, self._most)
                for replica in range(self.num_replicas)
            ),
        )

    @property
    def _most(self) -> int:
        return self.prompt_blocks // INDEX_EVERY


class BenchPrompt(NamedTuple):
    root: bytes
    blocks: tuple[bytes, ...]
    depths: tuple[int, ...]
    """How many of its indexed blocks each replica holds."""


class BenchLookup(NamedTuple):
    root: bytes
    blocks: tuple[bytes, ...]
    expected: dict[int, int]


class IndexBench:
    """`client` is of an empty Redis of its own, whose counters it resets. `tell` gets lines of progress."""

    def __init__(self, client: Redis, load: IndexLoad, tell: Callable[[str], None]) -> None:
        self._client = client
        self._index = RedisPrefixIndex(client)
        self._load = load
        self._tell = tell

    async def run(self) -> dict[str, Any]:
        """The figures. Raises `IndexUnavailable`."""
        empty_bytes = await self._used_bytes()
        events_per_s = await self._fill()
        used_bytes = await self._used_bytes() - empty_bytes
        entries = await self._client.dbsize()
        times_ms, wrong, server = await self._look_up_all()
        p50, p99 = percentiles(times_ms, [50, 99])
        assert p50 is not None
        return {
            "held": p50 <= MAX_LOOKUP_P50_MS and server["mean_ms"] <= MAX_SERVER_MEAN_MS and not wrong,
            "blocks": self._load.num_blocks,
            "entries": entries,
            "replicas": self._load.num_replicas,
            "prompt_blocks": self._load.prompt_blocks,
            "lookups": len(times_ms),
            "wrong_lookups": wrong,
            "lookup_p50_ms": round(p50, 3),
            "lookup_p99_ms": p99 and round(p99, 3),
            "server_mean_ms": round(server["mean_ms"], 3),
            "commands_per_lookup": server["commands"],
            "reads_per_lookup": server["reads"],
            "events_per_s": round(events_per_s),
            "bytes_per_block": round(used_bytes / self._load.num_blocks, 1),
            "bytes_per_entry": round(used_bytes / entries, 1),
        }

    async def _fill(self) -> float:
        """Every replica's blocks, told by one after the other. Returns how many were told a second."""
        told = 0
        took_s = 0.0
        for first in range(0, self._load.num_prompts, self._load.prompts_a_call):
            last = min(first + self._load.prompts_a_call, self._load.num_prompts)
            prompts = [self._load.prompt(number) for number in range(first, last)]
            for replica in range(self._load.num_replicas):
                blocks = tuple(
                    block for prompt in prompts for block in indexed(prompt.blocks)[: prompt.depths[replica]]
                )
                began = time.perf_counter()
                await self._publish(replica, Changes(prompts[0].root, stored=blocks))
                took_s += time.perf_counter() - began
                told += len(blocks)
            self._tell(f"filling: {last * self._load.prompt_blocks} of {self._load.num_blocks} blocks")
        return told / took_s

    async def _publish(self, replica: int, changes: Changes) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._index.publish(replica, [changes], frozenset())
                return
            except IndexUnavailable:
                if not tries_left:
                    raise

    async def _look_up_all(self) -> tuple[list[float], int, dict[str, float]]:
        """Each look-up's milliseconds, how many were answered wrongly, and what the server counted."""
        rng = Random(self._load.seed)
        for _ in range(_WARM_UP):
            await self._look_up(rng)
        await self._client.config_resetstat()
        times_ms: list[float] = []
        wrong = 0
        for number in range(self._load.num_lookups):
            took_ms, is_right = await self._look_up(rng)
            times_ms.append(took_ms)
            wrong += not is_right
            self._tell(f"looking up: {number} of {self._load.num_lookups}")
        return times_ms, wrong, await self._server_figures()

    async def _look_up(self, rng: Random) -> tuple[float, bool]:
        """How many milliseconds it took, and whether the answer is right."""
        root, blocks, expected = self._draw(rng)
        began = time.perf_counter()
        found = await self._index.look_up(root, blocks, range(self._load.num_replicas))
        return (time.perf_counter() - began) * 1000, found == expected

    def _draw(self, rng: Random) -> BenchLookup:
        prompt = self._load.prompt(rng.randrange(self._load.num_prompts))
        known = rng.randint(0, self._load.prompt_blocks)
        fresh = _hashes(rng, self._load.prompt_blocks - known)
        depths = [min(depth, known // INDEX_EVERY) * INDEX_EVERY for depth in prompt.depths]
        expected = {replica: depth for replica, depth in enumerate(depths) if depth}
        return BenchLookup(prompt.root, prompt.blocks[:known] + fresh, expected)

    async def _server_figures(self) -> dict[str, float]:
        stats = await self._client.info("commandstats")
        scripts, reads = stats["cmdstat_evalsha"], stats["cmdstat_getrange"]
        return {
            "mean_ms": scripts["usec_per_call"] / 1000,
            "commands": round(scripts["calls"] / self._load.num_lookups, 2),
            "reads": round(reads["calls"] / self._load.num_lookups, 2),
        }

    async def _used_bytes(self) -> int:
        return int((await self._client.info("memory"))["used_memory"])


def _hashes(rng: Random, count: int) -> tuple[bytes, ...]:
    packed = rng.randbytes(_HASH_BYTES * count)
    return tuple(packed[at : at + _HASH_BYTES] for at in range(0, len(packed), _HASH_BYTES))
