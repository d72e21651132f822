"""Rollouts in Redis: gateways ask for one, the launcher runs it, everybody reads how far it is.

One key holds the rollout that is not over yet, one the list of those that are, one the model that serves.
Only the launcher changes them after a rollout was asked for. The keys carry the cluster's id: what another
start left behind is nobody's. Golden prompts are anybody's text: they are there only from the order until
the launcher takes it up, encrypted with a key from the root secret, which gateways and launcher share.
"""

from __future__ import annotations

import base64
import hmac
import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec
import redis
from cryptography.fernet import Fernet, InvalidToken
from pydantic import TypeAdapter
from redis.asyncio import Redis
from redis.exceptions import RedisError

from cluster.golden import GoldenPrompt
from cluster.rollout.rollout import Order, Rollout
from tenants.bounded import bounded
from tenants.redis_client import CALL_TIMEOUT_S
from tenants.store import Conflict, CorruptRecord, NotFound, StoreUnavailable

log = logging.getLogger("headrace.rollout")

MAX_ENDED = 20
"""So many that are over are remembered."""
SERVING_TTL_S = 600
"""The launcher tells the model that serves far more often; without a launcher there is no cluster."""
_TTL_S = 7 * 86_400
_TIMEOUT_S = 1.0
_PROMPTS = TypeAdapter(tuple[GoldenPrompt, ...])


class Rollouts(Protocol):
    """What the operator's API needs. Every method may raise `StoreUnavailable`."""

    async def ask(self, rollout: Rollout, golden: Sequence[GoldenPrompt]) -> None:
        """Raises `Conflict` while another one is not over."""
        ...

    async def get(self, rollout_id: str) -> Rollout:
        """Raises `NotFound`."""
        ...

    async def list_all(self) -> list[Rollout]:
        """The latest first."""
        ...


class _Keys:
    def __init__(self, cluster_id: str) -> None:
        self.current = f"headrace:rollout:{cluster_id}"
        self.ended = f"headrace:rollouts:{cluster_id}"
        self.serving = f"headrace:serving:{cluster_id}"


class _Row(msgspec.Struct, frozen=True):
    rollout: Rollout
    sealed_golden: bytes = b""


class RedisRollouts:
    """The gateway's side. `secret` is the root secret."""

    def __init__(self, client: Redis, cluster_id: str, secret: bytes) -> None:
        self._client = client
        self._keys = _Keys(cluster_id)
        self._seal = _seal(secret)

    async def ask(self, rollout: Rollout, golden: Sequence[GoldenPrompt]) -> None:
        sealed = self._seal.encrypt(_PROMPTS.dump_json(tuple(golden), exclude_none=True)) if golden else b""
        row = msgspec.json.encode(_Row(rollout, sealed))
        try:
            async with bounded(CALL_TIMEOUT_S):
                if await self._client.set(self._keys.current, row, nx=True, ex=_TTL_S):
                    return
                current: bytes | None = await self._client.get(self._keys.current)  # type: ignore[assignment]
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None
        running = _readable(current) if current else None
        name = running.rollout_id if running else "another one"
        raise Conflict(f"rollout {name} is not over yet")

    async def get(self, rollout_id: str) -> Rollout:
        for rollout in await self.list_all():
            if rollout.rollout_id == rollout_id:
                return rollout
        raise NotFound(f"there is no rollout {rollout_id}")

    async def list_all(self) -> list[Rollout]:
        try:
            async with bounded(CALL_TIMEOUT_S), self._client.pipeline() as pipeline:
                pipeline.get(self._keys.current)
                pipeline.lrange(self._keys.ended, 0, -1)
                current, ended = await pipeline.execute()
        except (RedisError, OSError) as error:
            raise StoreUnavailable(type(error).__name__) from None
        return [rollout for row in (current, *ended) if row is not None and (rollout := _readable(row))]

    async def serving_model(self) -> str | None:
        """The model that serves, as `--model` names it; None if that is not known, or Redis is away."""
        try:
            async with bounded(CALL_TIMEOUT_S):
                model: bytes | None = await self._client.get(self._keys.serving)  # type: ignore[assignment]
            return None if model is None else model.decode()
        except (RedisError, OSError, UnicodeDecodeError):
            return None


class RolloutQueue:
    """The launcher's side. Every method but `close` may raise `redis.RedisError`."""

    def __init__(self, redis_url: str, cluster_id: str, secret: bytes) -> None:
        self._redis = redis.Redis.from_url(
            redis_url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S
        )
        self._keys = _Keys(cluster_id)
        self._seal = _seal(secret)

    def asked(self) -> Order | None:
        """What is to be run, if there is anything. Raises `CorruptRecord` for what no gateway wrote."""
        try:
            data = self._redis.get(self._keys.current)
        except redis.ResponseError:
            raise CorruptRecord("something that is no rollout is under its key") from None
        if data is None:
            return None
        assert isinstance(data, bytes)
        row = _decode(data)
        return Order(row.rollout, self._open(row.sealed_golden) if row.sealed_golden else ())

    def _open(self, sealed: bytes) -> tuple[GoldenPrompt, ...]:
        try:
            return _PROMPTS.validate_json(self._seal.decrypt(sealed))
        except (InvalidToken, ValueError):
            raise CorruptRecord("golden prompts were not sealed with this root secret") from None

    def tell(self, rollout: Rollout) -> None:
        """How far it is; one that has ended makes place for the next. No golden prompt stays in Redis."""
        row = msgspec.json.encode(_Row(rollout))
        if not rollout.has_ended:
            self._redis.set(self._keys.current, row, ex=_TTL_S)
            return
        with self._redis.pipeline() as pipeline:
            pipeline.lpush(self._keys.ended, row)
            pipeline.ltrim(self._keys.ended, 0, MAX_ENDED - 1)
            pipeline.expire(self._keys.ended, _TTL_S)
            pipeline.delete(self._keys.current)
            pipeline.execute()

    def drop(self) -> None:
        """Forgets what was asked for."""
        self._redis.delete(self._keys.current)

    def tell_serving(self, model: str) -> None:
        """For gateways that start from now on."""
        self._redis.set(self._keys.serving, model, ex=SERVING_TTL_S)

    def close(self) -> None:
        self._redis.close()


def _decode(row: bytes) -> _Row:
    try:
        return msgspec.json.decode(row, type=_Row)
    except (msgspec.DecodeError, RecursionError):
        raise CorruptRecord("a rollout's record is not ours") from None


def _readable(row: bytes) -> Rollout | None:
    """None for a row that is none of ours: the others are told without it."""
    try:
        return _decode(row).rollout
    except CorruptRecord as error:
        log.error("%s", error)
        return None


def _seal(secret: bytes) -> Fernet:
    return Fernet(base64.urlsafe_b64encode(hmac.digest(secret, b"headrace golden prompts\0", "sha256")))
