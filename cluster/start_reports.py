"""How replicas tell the launcher which stage of their start they have passed, or failed.

A list in Redis, because a replica may start on another node than the launcher.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import redis

log = logging.getLogger("headrace.replica")

_KEY = "headrace:start:{}"
_TTL_S = 3600


class StageReport(msgspec.Struct, frozen=True):
    """One stage that one replica has passed (`error` None) or failed in."""

    replica_id: str
    stage: str
    seconds: float
    detail: str = ""
    error: str | None = None
    remedy: str = ""


class StartReports:
    """`reports_id` tells this start of this pool from all others on the same Redis.

    Reading raises `redis.RedisError`; telling does not: a replica that replaces another one must come up
    without Redis, too. `current` is the stage that this replica is in, for a report of its failure.
    """

    def __init__(self, redis_url: str, reports_id: str) -> None:
        self._redis = redis.Redis.from_url(redis_url, socket_timeout=5, socket_connect_timeout=5)
        self._key = _KEY.format(reports_id)
        self.current = "replica"
        self.seconds: dict[str, float] = {}
        """Of each stage that has passed here."""

    def push(self, report: StageReport) -> None:
        try:
            with self._redis.pipeline() as pipeline:
                pipeline.rpush(self._key, msgspec.json.encode(report))
                pipeline.expire(self._key, _TTL_S)
                pipeline.execute()
        except redis.RedisError as error:
            log.warning("stage %s could not be told: %s", report.stage, type(error).__name__)

    def close(self) -> None:
        self._redis.close()

    def pop_all(self) -> list[StageReport]:
        with self._redis.pipeline() as pipeline:
            pipeline.lrange(self._key, 0, -1)
            pipeline.delete(self._key)
            rows, _ = pipeline.execute()
        return [msgspec.json.decode(row, type=StageReport) for row in rows]

    @contextmanager
    def stage(
        self, replica_id: str, name: str, clock: Callable[[], float]
    ) -> Iterator[Callable[[str], None]]:
        """Reports the stage when it has passed; the yielded function sets its detail."""
        self.current = name
        begun = clock()
        details: list[str] = []
        yield details.append
        self.passed(replica_id, name, clock() - begun, "; ".join(details))

    def passed(self, replica_id: str, name: str, seconds: float, detail: str = "") -> None:
        self.seconds[name] = seconds
        self.push(StageReport(replica_id, name, seconds, detail))
