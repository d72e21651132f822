"""The gateway: Ray Serve's ingress. It builds what the API needs and hands the app to Serve; nothing else.

Its import closure holds neither torch nor triton.
"""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import psutil
from fastapi import FastAPI
from prometheus_client import start_http_server
from ray import serve

from cluster.admission import Admission, Who
from cluster.api.app import build_app
from cluster.api.services import Services
from cluster.autoscaling.demand import GatewayDemand
from cluster.autoscaling.metrics import ScalingCollector
from cluster.autoscaling.store import RedisStatus
from cluster.autoscaling.teller import DemandTeller
from cluster.cluster_generator import ClusterGenerator
from cluster.edge import READINESS
from cluster.gateway_dispatch import GatewayDispatch
from cluster.gateway_record import GatewayRecord
from cluster.index.prefix_index import IndexUnavailable
from cluster.index.redis_index import RedisPrefixIndex
from cluster.leaving import on_sigterm
from cluster.link import Abort
from cluster.link_events import LinkEvents
from cluster.links import COALESCE_S, Links
from cluster.logs import set_up_logging
from cluster.pools import ReplicaPools
from cluster.public_prefixes import PublicPrefixes
from cluster.rollout.store import RedisRollouts
from cluster.serve_pool import ServePool, deployed_pools
from cluster.settings import root_secret
from cluster.spec import ClusterSpec
from cluster.telemetry import Telemetry
from engine.chat_template import ChatTemplate
from engine.loading.source import resolve_model
from engine.request import Timing
from tenants.auth import Authenticator
from tenants.outcomes.guarded_outcomes import GuardedOutcomes
from tenants.outcomes.redis_outcomes import RedisOutcomes
from tenants.record_health import GuardedKeys
from tenants.redis_client import connect

POLL_S = 0.05
LAST_WORDS_S = 1.0
"""For the errors of answers that were cut off."""
UNTIL_PROXY_KNOWS_S = 2.0
"""HAProxy asks for health every second, and once more after 0.25 s if it is bad (`ray_env.py`)."""


@serve.ingress()
class Gateway:
    """One HTTP gateway. Owns its links, its Redis client, its record and its telemetry."""

    async def __init__(self, spec_json: str) -> None:  # type: ignore[misc]  # Serve awaits it
        spec = ClusterSpec.from_json(spec_json)
        set_up_logging(spec.settings.log_level)
        self._may_be_empty = spec.settings.fewest_replicas == 0  # the first request starts a replica
        self._gateway_id = secrets.token_hex(8)
        self._telemetry = Telemetry(lambda: self._links.states())
        self._redis = connect(spec.redis_url)
        self._index = RedisPrefixIndex(self._redis)
        self._links = Links(
            lambda replica_id: self._pools.connect(replica_id),
            time.monotonic,
            self._link_events(),
            drain_limit_s=spec.settings.drain_limit_s,
            coalesce_s=COALESCE_S,
            leave_aborts=self._leave_aborts,
        )
        secret = root_secret(spec.settings.state_dir)
        self._record = GatewayRecord(
            self._redis, spec.settings, self._gateway_id, secret, self._telemetry.tenants
        )
        self._record.register(self._telemetry.registry)
        self._status = RedisStatus(self._redis, spec.cluster_id)
        self._scaling = DemandTeller(self._status, self._gateway_id, self._demand, time.monotonic)
        self._telemetry.registry.register(ScalingCollector(lambda: self._scaling.latest))
        self._dispatch = GatewayDispatch(
            self._links, spec.settings, self._telemetry, self._until_next_replica_s
        )
        self._services = await self._build_services(spec, secret)
        self._pools = ReplicaPools(
            deployed_pools,
            lambda pool_id, listener: ServePool(pool_id, self._gateway_id, listener),
            self._links.set_replicas,
        )
        self._following = asyncio.ensure_future(self._pools.follow())
        self._telling = asyncio.ensure_future(self._scaling.run())
        self._record.start()
        self._dispatch.start()
        on_sigterm(asyncio.get_running_loop(), partial(self._leave, spec.settings.drain_limit_s))
        self._announcing = asyncio.ensure_future(self._announce(spec))
        gc.freeze()

    def __serve_build_asgi_app__(self) -> FastAPI:
        return build_app(self._services)

    async def _build_services(self, spec: ClusterSpec, secret: bytes) -> Services:
        """With the text rules of the version that serves: the files of the first one may be gone by now."""
        rollouts = RedisRollouts(self._redis, spec.cluster_id, secret)
        source = resolve_model(await rollouts.serving_model() or spec.settings.model)
        tokenizer, template = source.tokenizer(), source.chat_template()
        tokenizer_pool = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        record, telemetry = self._record, self._telemetry
        self._generator = self._build_generator(spec, secret, tokenizer.token_bytes, tokenizer_pool)
        return Services(
            generator=self._generator,
            authenticator=Authenticator(
                GuardedKeys(record.store, record.standby.health),
                secret,
                time.time,
                on_stale=telemetry.count_stale_key,
            ),
            store=record.store,
            ledger=record.ledger,
            adjust=record.adjust,
            rollouts=rollouts,
            status=self._status,
            outcomes=GuardedOutcomes(RedisOutcomes(self._redis), record.standby.health),
            secret=secret,
            tokenizer=tokenizer,
            chat_template=ChatTemplate(template, tokenizer) if template else None,
            model_name=spec.served_name,
            aliases=(),
            max_model_len=lambda: spec.engine.config.max_model_len,
            max_num_seqs=spec.engine.config.max_num_seqs,
            ready=self._is_ready,
            telemetry=telemetry,
            clock=time.monotonic,
            wall_clock=time.time,
            tokenizer_pool=tokenizer_pool,
            draw_seed=lambda: secrets.randbits(64),
        )

    def _build_generator(
        self, spec: ClusterSpec, secret: bytes, token_bytes: Callable[[int], bytes], hasher: Executor
    ) -> ClusterGenerator:
        record, telemetry = self._record, self._telemetry
        admission = Admission(
            self._redis,
            record.ledger,
            self._index,
            record.standby.health,
            record.standby,
            record.books,
            Who(self._gateway_id, spec.served_name, time.time),
            telemetry.tenants,
            telemetry.count_lookup,
        )
        return ClusterGenerator(
            self._links,
            self._dispatch.dispatcher,
            self._dispatch.room,
            admission,
            token_bytes,
            secret,
            hasher,
            telemetry,
            record.running,
            PublicPrefixes(spec.public_prefixes),
        )

    def _link_events(self) -> LinkEvents:
        """What is made after the links is looked up when it happens."""
        return LinkEvents(
            on_discarded=self._telemetry.count_discarded,
            on_timing=self._hear_timing,
            on_lost=self._telemetry.count_lost_link,
            on_credit=lambda: self._dispatch.room.let_go(),
            on_served=lambda served: self._dispatch.room.served_elsewhere(served),
            on_hello=lambda hello: self._dispatch.warming.greet(hello),
        )

    def _hear_timing(self, timing: Timing) -> None:
        self._telemetry.observe_timing(timing)
        self._dispatch.hear_timing(timing)

    async def _leave_aborts(self, incarnation: int, aborts: tuple[Abort, ...]) -> None:
        """Without Redis the answers run out."""
        with suppress(IndexUnavailable):
            await self._index.leave_aborts(incarnation, aborts)

    async def _announce(self, spec: ClusterSpec) -> None:
        """Puts this gateway into the run directory's targets once Serve has opened its direct port."""
        server, _ = start_http_server(0, addr="127.0.0.1", registry=self._telemetry.registry)
        while not (ports := _direct_ports()):  # noqa: ASYNC110  Serve tells nobody when it has opened it
            await asyncio.sleep(POLL_S)
        spec.run_dir.add_target(
            f"127.0.0.1:{server.server_address[1]}",
            {"process": "gateway", "gateway": self._gateway_id, "direct_address": f"127.0.0.1:{ports[0]}"},
        )

    def _demand(self) -> GatewayDemand:
        waiting = self._dispatch
        return self._generator.demand.row(
            time.monotonic(), waiting.waiting_tokens, len(waiting.room), self._links.states()
        )

    def _until_next_replica_s(self) -> float | None:
        status = self._scaling.latest
        return None if status is None else status.next_eta_s

    def _is_ready(self) -> bool:
        can_serve = self._may_be_empty or bool(self._links.candidates())
        return READINESS.is_ready and self._generator.is_admitting and can_serve

    async def _leave(self, limit_s: float) -> None:
        """Nothing new comes once the proxy has seen that this is not ready; until then it is served."""
        READINESS.is_ready = False
        await asyncio.sleep(UNTIL_PROXY_KNOWS_S)
        await self.drain(limit_s)

    async def drain(self, limit_s: float) -> int:
        """Takes no more work and waits for what runs, `limit_s` at most. Returns how many were left."""
        self._generator.stop_admitting()
        await self._until_idle(limit_s)
        num_left = self._telemetry.num_in_flight
        await self._dispatch.close()
        await self._links.close()
        await self._until_idle(LAST_WORDS_S)
        await self._record.close()
        return num_left

    async def _until_idle(self, limit_s: float) -> None:
        deadline = time.monotonic() + limit_s
        while self._telemetry.num_in_flight and time.monotonic() < deadline:  # noqa: ASYNC110  once a life
            await asyncio.sleep(POLL_S)


def _direct_ports() -> list[int]:
    """Ports in Serve's direct-ingress range that this process listens on."""
    low, high = (
        int(os.environ.get(f"RAY_SERVE_DIRECT_INGRESS_{end}_HTTP_PORT", default))
        for end, default in (("MIN", "30000"), ("MAX", "31000"))
    )
    listening = (
        connection.laddr.port
        for connection in psutil.Process().net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    )
    return sorted(port for port in listening if low <= port <= high)
