"""What is told to the index, when, and what is made of the answers."""

from __future__ import annotations

from random import Random

import pytest

from cluster.index import publisher as prefix_publisher
from cluster.index.block_news import BlockNews, Cleared, Evicted
from cluster.index.digest_round import MAX_BATCH, ROUND_S
from cluster.index.prefix_index import INDEX_EVERY, Changes
from cluster.index.publisher import PUBLISH_EVERY_S, IndexBatch
from engine.block_chain import BlockChain
from tests.cluster.publisher_rig import ROOT, TICK_S, Rig, names, stored


@pytest.fixture
def rig() -> Rig:
    return Rig.started()


def news(*changes: Changes) -> IndexBatch:
    return IndexBatch("news", changes, sum(len(change.stored) + len(change.evicted) for change in changes))


# --- news ------------------------------------------------------------------------------------


def test_only_every_indexed_block_of_a_chain_is_news() -> None:
    heard, chain = BlockNews(), BlockChain(ROOT, range(40), 4)
    for block in chain:
        heard.stored(ROOT, block)
    for block in chain:
        heard.evicted(block)
    heard.cleared()
    told = [chain[depth].block_hash for depth in range(INDEX_EVERY - 1, 10, INDEX_EVERY)]
    assert heard.take() == [*stored(*told), *map(Evicted, told), Cleared()]
    assert heard.take() == []


def test_news_are_told_once_by_root_and_in_order(rig: Rig) -> None:
    rig.take(*stored(b"a1", b"a2"), *stored(b"b1", root=b"other"), *stored(b"a3"))
    assert rig.tick() == news(Changes(ROOT, (b"a1", b"a2", b"a3")), Changes(b"other", (b"b1",)))
    rig.take(Evicted(b"a3"), *stored(b"b2", root=b"other"), Evicted(b"a2"))
    assert rig.tick() == news(Changes(b"other", (b"b2",)), Changes(ROOT, (), (b"a3", b"a2")))
    assert rig.tick() is None
    assert rig.publisher.figures.published_total == 7


def test_changes_of_one_block_cancel_out_before_they_are_told(rig: Rig) -> None:
    rig.take(*stored(b"a"), Evicted(b"a"))
    assert rig.tick() is None
    rig.take(*stored(b"a"))
    rig.tick()
    rig.take(Evicted(b"a"), *stored(b"a"))
    assert rig.tick() is None
    rig.take(Evicted(b"a"), *stored(b"a"), Evicted(b"a"))
    assert rig.tick() == news(Changes(ROOT, (), (b"a",)))


def test_what_comes_while_a_batch_is_on_its_way_is_told_after_it(rig: Rig) -> None:
    rig.take(*stored(b"a"))
    batch = rig.publisher.next_batch(rig.now + 1)
    assert batch is not None
    rig.take(Evicted(b"a"))
    rig.publisher.acknowledged(batch, 1)
    rig.now += 1
    assert rig.tick() == news(Changes(ROOT, (), (b"a",)))


def test_batches_keep_their_distance(rig: Rig) -> None:
    rig.take(*stored(b"a"))
    assert rig.tick() is not None
    rig.take(*stored(b"b"))
    assert rig.publisher.next_batch(rig.now + 0.9 * PUBLISH_EVERY_S) is None
    assert rig.publisher.next_batch(rig.now + 1.1 * PUBLISH_EVERY_S) is not None


def test_a_batch_is_bounded_and_the_rest_follows(rig: Rig) -> None:
    told = names(2 * MAX_BATCH + 1)
    rig.take(*stored(*told))
    assert rig.publisher.figures.queued == len(told)
    assert [batch.num_claims for batch in rig.run(1)] == [MAX_BATCH, MAX_BATCH, 1]
    assert rig.held == set(told)
    assert rig.publisher.figures.queued == 0


def test_a_cleared_cache_is_told_as_evictions_children_first(rig: Rig) -> None:
    rig.take(*stored(b"a1", b"a2"))
    rig.tick()
    rig.take(Cleared(), *stored(b"c"))
    assert rig.tick() == news(Changes(ROOT, (b"c",), (b"a2", b"a1")))


def test_a_long_answer_tells_its_new_blocks_and_not_its_ancestors(rig: Rig) -> None:
    prompt = names(1000)
    rig.take(*stored(*prompt))
    rig.run(ROUND_S)
    first = len(rig.batches)
    for block_hash in names(20, start=1000):
        rig.take(*stored(block_hash))
        rig.run(0.5)
    told = [batch.num_claims for batch in rig.batches[first:] if batch.kind == "news"]
    assert told == [1] * 20


# --- the digest --------------------------------------------------------------------------------


def test_a_round_tells_all_that_is_held_and_was_evicted_slice_by_slice(rig: Rig) -> None:
    held, gone = names(80), names(20, start=80)
    rig.take(*stored(*held, *gone))
    rig.run(ROUND_S)
    rig.take(*map(Evicted, gone))
    rig.run(1)
    told = [batch for batch in rig.run(2 * ROUND_S) if batch.kind == "digest"]
    assert {name for batch in told for change in batch.changes for name in change.stored} == set(held)
    assert {name for batch in told for change in batch.changes for name in change.evicted} == set(gone)
    assert max(batch.num_claims for batch in told) <= 4
    later = rig.run(ROUND_S)
    assert not any(change.evicted for batch in later for change in batch.changes), "told long enough"
    assert rig.publisher.figures.repaired_total == 0
    assert rig.state == "exact"


def test_every_held_block_is_refreshed_in_every_round(rig: Rig) -> None:
    rig.take(*stored(*names(50)))
    rig.run(1)
    rig.take(*map(Evicted, names(50)))
    rig.run(1)
    rig.take(*stored(*names(50)))
    rig.run(2 * ROUND_S)
    for _ in range(3):
        told = [name for batch in rig.run(ROUND_S) for change in batch.changes for name in change.stored]
        assert set(told) == set(names(50))
        assert len(told) <= 53  # a slice on each side of the border


def test_lost_claims_are_repaired_by_the_next_round_and_counted(rig: Rig) -> None:
    rig.take(*stored(*names(50)), *stored(b"gone"))
    rig.run(1)
    rig.take(Evicted(b"gone"))
    rig.run(1)
    rig.claims -= {(ROOT, name) for name in names(7, start=20)}
    rig.claims.add((ROOT, b"gone"))
    rig.run(2 * ROUND_S)
    assert rig.held == set(names(50))
    assert rig.publisher.figures.repaired_total == 8
    rig.run(ROUND_S)
    assert rig.state == "exact"


def test_it_is_degraded_until_a_whole_round_has_found_nothing(rig: Rig) -> None:
    rig.take(*stored(*names(30)))
    rig.run(2 * ROUND_S)
    rig.claims.discard((ROOT, names(30)[29]))
    states = []
    for _ in range(round(3 * ROUND_S / TICK_S)):
        rig.tick()
        states.append(rig.state)
    degraded = states.index("degraded"), len(states) - states[::-1].index("degraded")
    assert set(states[slice(*degraded)]) == {"degraded"}
    assert (degraded[1] - degraded[0]) * TICK_S >= ROUND_S
    assert states[-1] == "exact"


def test_news_on_the_way_are_no_loss(rig: Rig) -> None:
    """Every kind of change, at all times of a round."""
    random, live = Random(0), list[bytes]()
    for number in range(round(3 * ROUND_S / TICK_S)):
        live += (new := names(5, start=5 * number))
        rig.take(*stored(*new))
        random.shuffle(live)
        rig.take(*map(Evicted, [live.pop() for _ in range(4)]))
        rig.take(Evicted(live[-1]), *stored(live[-1]))
        rig.tick()
        assert rig.state == "exact"
    assert rig.publisher.figures.repaired_total == 0


# --- states --------------------------------------------------------------------------------------


def in_state(state: str) -> Rig:
    """With 50 blocks held and told."""
    rig = Rig.started()
    rig.take(*stored(*names(50)))
    rig.run(1)
    if state == "degraded":
        rig.publisher.has_beaten(False, rig.now)
    elif state == "off":
        rig.publisher.failed("down")
    assert rig.state == state
    rig.take(*stored(b"new"))
    return rig


def has_told_all(rig: Rig) -> bool:
    """Whether everything is told at the next occasions."""
    rig.claims.clear()
    rig.run(4 * TICK_S)
    return rig.held == {*names(50), b"new"}


@pytest.mark.parametrize("start", ["exact", "degraded", "off"])
def test_a_failed_call_turns_any_state_off_and_nothing_is_told(start: str) -> None:
    rig = in_state(start)
    before = rig.publisher.figures.failures_total
    rig.publisher.failed("no route")
    figures = rig.publisher.figures
    assert (figures.state, figures.reason, figures.queued) == ("off", "no route", 0)
    assert figures.failures_total == before + 1
    rig.take(*stored(b"more"))
    assert rig.run(2 * ROUND_S) == []
    assert rig.publisher.figures.queued == 0


@pytest.mark.parametrize(
    ("start", "was_alive", "end", "tells_all"),
    [
        ("exact", True, "exact", False),
        ("exact", False, "degraded", True),
        ("degraded", False, "degraded", True),
        ("off", True, "degraded", True),
        ("off", False, "degraded", True),
    ],
)
def test_a_heartbeat_is_answered(start: str, was_alive: bool, end: str, tells_all: bool) -> None:
    rig = in_state(start)
    rig.publisher.has_beaten(was_alive, rig.now)
    assert rig.state == end
    assert has_told_all(rig) == tells_all


def test_a_heartbeat_does_not_end_what_is_still_to_be_repaired() -> None:
    rig = in_state("degraded")
    rig.publisher.has_beaten(True, rig.now)
    assert rig.state == "degraded"
    assert has_told_all(rig)


def test_what_came_while_it_was_off_is_told_when_the_index_is_back(rig: Rig) -> None:
    rig.take(*stored(b"a", b"b"))
    rig.tick()
    rig.is_down = True
    rig.take(*stored(b"c"))
    rig.tick()
    rig.take(Evicted(b"b"), *stored(b"d"))
    rig.run(5)
    rig.is_down = False
    rig.publisher.has_beaten(True, rig.now)
    rig.tick()
    assert rig.held == {b"a", b"c", b"d"}


def test_an_index_that_kept_everything_is_exact_again_at_once() -> None:
    rig = in_state("off")
    rig.claims.add((ROOT, b"new"))
    rig.publisher.has_beaten(True, rig.now)
    rig.run(2 * TICK_S)
    assert rig.state == "exact"


def test_it_begins_off_and_is_exact_with_the_first_heartbeat_and_nothing_held() -> None:
    rig = Rig()
    assert rig.tick() is None
    assert rig.state == "off"
    rig.publisher.has_beaten(True, rig.now)
    rig.tick()
    assert rig.state == "exact"


@pytest.fixture
def short_queue(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(prefix_publisher, "MAX_QUEUED", 10)
    return 10


def test_more_news_than_the_queue_holds_are_dropped_and_everything_is_told_anew(
    rig: Rig, short_queue: int
) -> None:
    rig.take(*stored(*names(4)))
    rig.tick()
    rig.take(Evicted(names(1)[0]), *stored(*names(short_queue, start=4)))
    rig.tick()
    figures = rig.publisher.figures
    assert (figures.state, figures.queued) == ("degraded", 0)
    assert rig.held == set(names(13, start=1))
    rig.run(2 * ROUND_S)
    assert rig.state == "exact"


def test_evictions_are_remembered_in_bounded_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_publisher, "MAX_EVICTED", 5)
    rig.take(*stored(*names(20)))
    rig.take(*map(Evicted, names(20)))
    rig.claims = {(ROOT, name) for name in names(20)}
    rig.publisher.has_beaten(False, rig.now)
    rig.tick()
    assert rig.held == set(names(15)), "the longest evicted are forgotten"
