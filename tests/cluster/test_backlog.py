"""What a gateway tells of its backlog: bounded, and no more often than it may."""

from __future__ import annotations

import asyncio

from cluster.backlog import MAX_TENANTS, Backlog, bounded
from cluster.backlog_reports import BacklogReports
from cluster.link import Report


def test_a_few_tenants_are_told_one_by_one_the_longest_first() -> None:
    few = [Backlog("a", 5, 1), Backlog("b", 9, 1, priority=1), Backlog("c", 9, 1)]
    assert bounded(few) == (few[1], few[2], few[0])


def test_the_rest_of_many_is_told_as_one_for_each_class_with_the_weight_of_all() -> None:
    many = [Backlog(f"big-{number}", 100, 2) for number in range(MAX_TENANTS)]
    rest = [Backlog("x", 3, 1, 4), Backlog("y", 2, 5, 1), Backlog("z", 1, 1, 2, priority=1)]
    told = bounded([*rest, *many])
    assert set(told[:-2]) == set(many)
    assert told[-2:] == (Backlog("", 5, 6, 5), Backlog("", 1, 1, 2, priority=1))


class TestReports:
    async def test_the_first_leaves_at_once_and_what_comes_soon_after_as_it_stands_when_the_next_is_due(
        self,
    ) -> None:
        sent: asyncio.Queue[Report] = asyncio.Queue()
        reports = BacklogReports(sent.put_nowait, every_s=0.02)
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for tokens in (1, 2, 3):
            reports.tell([Backlog("a", tokens, 1)])
        assert sent.get_nowait() == Report((Backlog("a", 1, 1),))
        async with asyncio.timeout(5):
            assert await sent.get() == Report((Backlog("a", 3, 1),))
        assert loop.time() - begun_s >= 0.02
        assert reports.last == Report((Backlog("a", 3, 1),))
        assert sent.empty()
        reports.close()

    async def test_what_is_as_it_was_is_not_told_again(self) -> None:
        sent: list[Report] = []
        reports = BacklogReports(sent.append, every_s=0.0)
        for tokens in (0, 1, 1):
            reports.tell([Backlog("a", tokens, 1)] if tokens else [])
        assert sent == [Report((Backlog("a", 1, 1),))]

    async def test_nothing_is_told_after_the_end(self) -> None:
        sent: list[Report] = []
        reports = BacklogReports(sent.append, every_s=0.001)
        reports.tell([Backlog("a", 1, 1)])
        reports.tell([Backlog("a", 2, 1)])
        reports.close()
        loop = asyncio.get_running_loop()
        later = loop.create_future()
        loop.call_at(loop.time() + 0.002, later.set_result, None)
        await later
        assert sent == [Report((Backlog("a", 1, 1),))]
