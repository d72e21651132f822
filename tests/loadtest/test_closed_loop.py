"""The closed loop in told time: who sends when, how many at once, and what an interrupt leaves."""

import asyncio

import pytest

from loadtest.closed_loop import ClosedLoop
from loadtest.record import RequestRecord
from tests.builders_tenants import FakeClock


class Service:
    """Takes `seconds` of told time for each request, one after the other."""

    def __init__(self, seconds: float = 1.0) -> None:
        self.clock = FakeClock(now=100.0)
        self.seconds = seconds
        self.sent: list[tuple[int, float]] = []
        self.num_inside = 0
        self.most_inside = 0

    async def send(self, number: int, intended_at: float) -> RequestRecord:
        self.sent.append((number, intended_at))
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        await asyncio.sleep(0)
        self.clock.advance(self.seconds)
        self.num_inside -= 1
        return RequestRecord(
            tenant="a",
            intended_at=intended_at,
            sent_at=intended_at,
            finished_at=self.clock(),
            status="ok",
        )


async def test_one_user_sends_when_the_last_answer_has_come() -> None:
    service = Service(seconds=2.0)
    run = await ClosedLoop(service.send, service.clock, concurrency=1, num_requests=3).run()
    assert service.sent == [(0, 100.0), (1, 102.0), (2, 104.0)]
    assert (run.started_at, run.ended_at, len(run.records)) == (100.0, 106.0, 3)
    assert (run.concurrency, run.num_unfinished, run.is_interrupted) == (1, 0, False)


async def test_users_are_as_many_as_told_and_requests_too() -> None:
    service = Service()
    run = await ClosedLoop(service.send, service.clock, concurrency=4, num_requests=10).run()
    assert service.most_inside == 4
    assert sorted(number for number, _ in service.sent) == list(range(10))
    assert len(run.records) == 10


async def test_more_users_than_requests_send_no_more_than_told() -> None:
    service = Service()
    run = await ClosedLoop(service.send, service.clock, concurrency=8, num_requests=3).run()
    assert (service.most_inside, len(run.records)) == (3, 3)


async def test_after_its_duration_nothing_is_begun_and_what_was_is_waited_for() -> None:
    service = Service(seconds=2.0)
    run = await ClosedLoop(service.send, service.clock, concurrency=1, duration_s=5.0).run()
    assert service.sent == [(0, 100.0), (1, 102.0), (2, 104.0)]
    assert (len(run.records), run.ended_at) == (3, 106.0)


async def test_an_interrupt_keeps_what_ended_and_counts_what_did_not() -> None:
    service = Service()
    loop: ClosedLoop

    async def send(number: int, intended_at: float) -> RequestRecord:
        if number == 5:
            loop.interrupt()
        return await service.send(number, intended_at)

    loop = ClosedLoop(send, service.clock, concurrency=2, num_requests=100)
    run = await loop.run()
    assert (len(run.records), run.num_unfinished, run.is_interrupted) == (4, 2, True)


async def test_a_fault_of_ours_is_no_record_but_an_error() -> None:
    async def send(number: int, intended_at: float) -> RequestRecord:
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError, match="a fault"):
        await ClosedLoop(send, FakeClock(), concurrency=2, num_requests=4).run()


@pytest.mark.parametrize("bounds", [{}, {"num_requests": 1, "duration_s": 1.0}])
def test_exactly_one_end_must_be_told(bounds: dict) -> None:
    with pytest.raises(ValueError, match="exactly one of num_requests and duration_s"):
        ClosedLoop(Service().send, FakeClock(), concurrency=1, **bounds)
