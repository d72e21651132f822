"""The inbox: each sibling's outputs in order, once each, until its last one or its reader's end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.link import LinkDown
from cluster.token_inbox import TokenInbox
from engine.prefix_stats import PrefixStats
from engine.request import RequestOutput, Timing, TokenLogprobs
from tests.cluster.fake_replica import request, row


def inbox_of(n: int = 1) -> TokenInbox:
    return TokenInbox(request(n=n), "a", asyncio.Event())


def read(inbox: TokenInbox, count: int) -> list[tuple[int, tuple[int, ...]]]:
    """(sibling, tokens) of the next outputs."""
    outputs = [inbox.take() for _ in range(count)]
    return [(output.sibling, output.token_ids) for output in outputs if output is not None]


def test_siblings_have_their_own_indices_and_are_read_one_by_one() -> None:
    inbox = inbox_of(2)
    for output in (row("r", 0, 5, sibling=1), row("r", 0, 6), row("r", 1, 7, sibling=1), row("r", 1, 8)):
        inbox.put(output)
    assert read(inbox, 3) == [(1, (5, 7)), (0, (6, 8))]


def test_a_request_is_live_until_its_last_sibling_has_ended() -> None:
    inbox = inbox_of(3)
    inbox.put(row("r", 0, 5, sibling=1, finish="length"))
    assert [inbox.is_live(sibling) for sibling in range(4)] == [True, False, True, False]
    inbox.put(row("r", 0, sibling=0, finish="stop"))
    assert inbox.is_live()
    inbox.end(2)
    assert not inbox.is_live()


def test_siblings_are_numbered_from_the_request_s_own() -> None:
    inbox = TokenInbox(
        msgspec.structs.replace(request(), sibling=4, output_token_ids=(1, 2)), "a", asyncio.Event()
    )
    assert [inbox.is_live(sibling) for sibling in (0, 4)] == [False, True]
    inbox.put(row("r", 2, 5, sibling=4))
    assert read(inbox, 1) == [(4, (5,))]


def test_a_gap_of_one_sibling_is_a_gap() -> None:
    inbox = inbox_of(2)
    inbox.put(row("r", 0, 5, 6))
    with pytest.raises(LinkDown, match="tokens 0 to 1 were lost"):
        inbox.put(row("r", 2, 7, sibling=1))


def test_what_is_there_already_is_dropped_with_its_logprobs() -> None:
    inbox = inbox_of()
    told = [TokenLogprobs(-float(number)) for number in range(3)]
    inbox.put(msgspec.structs.replace(row("r", 0, 5, 6), logprobs=(told[0], told[1])))
    inbox.put(msgspec.structs.replace(row("r", 1, 6, 7), logprobs=(told[1], told[2])))
    output = inbox.take()
    assert output is not None
    assert (output.first_output_index, output.token_ids) == (0, (5, 6, 7))
    assert output.logprobs == tuple(told)


def test_what_is_told_once_survives_the_joining() -> None:
    inbox = inbox_of()
    lookup, timing = PrefixStats(hit_tokens=32), Timing(0.1, 0.2, 0.3, 0.0, 0)
    inbox.put(msgspec.structs.replace(row("r", 0, 5), num_cached_tokens=32, lookup=lookup))
    inbox.put(row("r", 1, 6))
    inbox.put(msgspec.structs.replace(row("r", 2, 7, finish="length"), timing=timing))
    assert inbox.take() == msgspec.structs.replace(
        row("r", 0, 5, 6, 7, finish="length"), num_cached_tokens=32, lookup=lookup, timing=timing
    )
    assert inbox.take() is None


@pytest.mark.parametrize("finish", ["error", "abort"])
def test_a_failure_comes_alone_after_what_was_made(finish: str) -> None:
    inbox = inbox_of(2)
    inbox.put(row("r", 0, 5))
    inbox.put(row("r", 0, 8, sibling=1))
    inbox.put(row("r", 1, 6))
    inbox.put(row("r", 2, finish=finish))
    assert read(inbox, 3) == [(0, (5, 6)), (1, (8,)), (0, ())]


def test_the_end_of_a_sibling_drops_its_unread_tokens_and_no_one_else_s() -> None:
    inbox = inbox_of(2)
    inbox.put(row("r", 0, 5, 6))
    inbox.put(row("r", 0, 7, sibling=1))
    inbox.put(row("r", 2, 8, finish="length"))
    assert inbox.end(0) == 3
    assert inbox.end(0) == 0
    assert read(inbox, 1) == [(1, (7,))]
    assert inbox.is_live(1)


def test_the_end_of_all_drops_everything() -> None:
    inbox = inbox_of(2)
    inbox.put(row("r", 0, 5, 6))
    inbox.put(row("r", 0, 7, sibling=1))
    assert inbox.end() == 3
    assert not inbox.is_live()


def test_a_dead_link_is_told_after_what_came() -> None:
    inbox = inbox_of(2)
    inbox.put(row("r", 0, 5))
    inbox.fail(LinkDown("gone"))
    assert read(inbox, 1) == [(0, (5,))]
    for _ in range(2):
        with pytest.raises(LinkDown, match="gone"):
            inbox.take()


def test_its_reader_is_woken_when_told_to_and_by_the_link_s_death() -> None:
    wake = asyncio.Event()
    inbox = TokenInbox(request(), "a", wake)
    inbox.put(row("r", 0, 5))
    assert not wake.is_set()
    inbox.announce()
    assert wake.is_set()
    wake.clear()
    inbox.fail(LinkDown("gone"))
    assert wake.is_set()


@dataclass
class Model:
    """What should be readable, by lists."""

    rows: list[RequestOutput] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(3), 0))

    def take(self) -> tuple[int, list[int]]:
        """All of the first one's sibling."""
        sibling = self.rows[0].sibling
        own = [one for one in self.rows if one.sibling == sibling]
        self.rows = [one for one in self.rows if one.sibling != sibling]
        return sibling, [token_id for one in own for token_id in one.token_ids]

    def end(self, sibling: int) -> int:
        dropped = sum(len(one.token_ids) for one in self.rows if one.sibling == sibling)
        self.rows = [one for one in self.rows if one.sibling != sibling]
        self.made.pop(sibling, None)
        return dropped


events = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 2), st.integers(0, 3), st.booleans()),
        st.tuples(st.just("end"), st.integers(0, 2)),
        st.just(("take",)),
    ),
    max_size=30,
)


@given(events)
def test_it_is_a_queue_with_siblings_taken_out(events: list[tuple[object, ...]]) -> None:
    inbox, model = inbox_of(3), Model()
    for event in events:
        match event:
            case ("put", int(sibling), int(count), finished) if sibling in model.made:
                finish = "length" if finished else None
                output = row("r", model.made[sibling], *range(count), sibling=sibling, finish=finish)
                inbox.put(output)
                model.rows.append(output)
                model.made[sibling] += count
                if finished:
                    del model.made[sibling]
            case ("end", int(sibling)):
                assert inbox.end(sibling) == model.end(sibling)
            case ("take",) if model.rows:
                taken = inbox.take()
                assert taken is not None
                assert (taken.sibling, list(taken.token_ids)) == model.take()
        assert [inbox.is_live(sibling) for sibling in range(3)] == [s in model.made for s in range(3)]
        assert inbox.is_live() == bool(model.made)
