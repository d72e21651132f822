"""The contract with Ray's request router, on hand-written pending requests: no cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID

from cluster.replica_registry import ReplicaGone, ReplicaWatch, forget, watch
from cluster.router import PinnedRouter


def replica(name: str) -> Any:
    return SimpleNamespace(replica_id=SimpleNamespace(unique_id=name))


def pending(pinned: str | None) -> Any:
    kwargs = {} if pinned is None else {"replica": pinned}
    return SimpleNamespace(
        kwargs=kwargs,
        future=asyncio.get_running_loop().create_future(),
        routing_context=SimpleNamespace(should_backoff=False),
    )


@pytest.fixture
def router() -> Iterator[PinnedRouter]:
    router = PinnedRouter.__new__(PinnedRouter)  # its constructor needs a running Serve handle
    router._deployment_id = DeploymentID(name="Replica", app_name="engine-1")
    router._replica_queue_len_cache = SimpleNamespace(invalidate_key=lambda replica_id: None)
    router._queue_len_gauge_last_update = {}
    router.initialize_state()
    yield router
    forget("engine-1")


async def test_a_pinned_call_gets_its_replica(router: PinnedRouter) -> None:
    call, a, b = pending("b"), replica("a"), replica("b")
    assert await router.choose_replicas([a, b], call) == [[b]]
    assert call.future.result() is b


async def test_two_calls_of_one_http_request_get_their_own_replicas(router: PinnedRouter) -> None:
    first, second, a, b = pending("a"), pending("b"), replica("a"), replica("b")
    await asyncio.gather(router.choose_replicas([a, b], first), router.choose_replicas([a, b], second))
    assert (first.future.result(), second.future.result()) == (a, b)


async def test_a_target_that_is_gone_fails_the_call_at_once(router: PinnedRouter) -> None:
    call, a = pending("b"), replica("a")
    assert await router.choose_replicas([a], call) == [[a]]
    with pytest.raises(ReplicaGone, match="b"):
        call.future.result()


async def test_a_replica_that_rejected_is_chosen_again_without_a_second_result(router: PinnedRouter) -> None:
    call, a = pending("a"), replica("a")
    await router.choose_replicas([a], call)
    assert await router.choose_replicas([a], call) == [[a]]
    assert call.future.result() is a


async def test_a_call_that_did_not_reach_its_replica_fails_and_is_not_tried_again(
    router: PinnedRouter,
) -> None:
    call, a, b = pending("a"), replica("a"), replica("b")
    router.on_replica_actor_unavailable(a.replica_id)
    other = pending("b")
    await router.choose_replicas([a, b], other)
    assert other.future.result() is b
    assert await router.choose_replicas([a, b], call) == [[a]]
    with pytest.raises(ReplicaGone, match="a"):
        call.future.result()


async def test_who_calls_again_later_gets_through(router: PinnedRouter) -> None:
    first, second, a = pending("a"), pending("a"), replica("a")
    router.on_replica_actor_unavailable(a.replica_id)
    await router.choose_replicas([a], first)
    assert isinstance(first.future.exception(), ReplicaGone)
    await router.choose_replicas([a], second)
    assert second.future.result() is a


async def test_one_that_leaves_the_list_is_not_remembered_as_unreached(router: PinnedRouter) -> None:
    a, b = replica("a"), replica("b")
    for one in (a, b):
        router.on_replica_actor_unavailable(one.replica_id)
    router._replicas_list = [b]
    router._tell()
    assert router._unreached == {"b"}


async def test_each_pool_has_a_watch_of_its_own(router: PinnedRouter) -> None:
    heard: list[frozenset[str]] = []
    watch("engine-1").subscribe(asyncio.get_running_loop(), heard.append)
    router._replicas_list = [replica("a")]
    router._tell()
    watch("engine-2").update(["b"])
    forget("engine-2")
    await asyncio.sleep(0)
    assert heard == [frozenset(), frozenset({"a"})]


def test_a_watch_that_was_forgotten_starts_anew() -> None:
    before = watch("engine-3")
    assert watch("engine-3") is before
    forget("engine-3")
    assert watch("engine-3") is not before
    forget("engine-3")


async def test_a_call_that_names_no_replica_backs_off(router: PinnedRouter) -> None:
    call, a = pending(None), replica("a")
    assert await router.choose_replicas([a], call) == [[a]]
    assert call.routing_context.should_backoff
    assert not call.future.done()


async def test_the_watch_tells_changes_only_and_the_current_set_first() -> None:
    heard: list[frozenset[str]] = []
    watch = ReplicaWatch()
    watch.update(["a"])
    watch.subscribe(asyncio.get_running_loop(), heard.append)
    watch.update(["a"])
    watch.update(["a", "b"])
    await asyncio.sleep(0)
    assert heard == [frozenset({"a"}), frozenset({"a", "b"})]
