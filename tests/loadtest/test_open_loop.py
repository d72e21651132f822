"""The open loop in told time: requests are sent when they are due, whatever becomes of those before."""

import asyncio

import pytest

from loadtest.loop import Send
from loadtest.open_loop import OpenLoop
from loadtest.record import RequestRecord
from tests.builders_tenants import FakeClock


class World:
    """Told time that moves only when everybody waits: then the earliest sleeper wakes."""

    def __init__(self) -> None:
        self.clock = FakeClock(now=100.0)
        self._sleepers: list[tuple[float, int, asyncio.Event]] = []

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.Event()
        self._sleepers.append((self.clock.now + seconds, len(self._sleepers), woken))
        await woken.wait()

    async def turn(self, running: "asyncio.Task[object]") -> None:
        while not running.done():
            for _ in range(20):  # more turns of the event loop than any chain of ours needs
                await asyncio.sleep(0)
            if running.done():
                return
            assert self._sleepers, "nobody will ever wake"
            earliest = min(self._sleepers)
            self._sleepers.remove(earliest)
            self.clock.now = max(self.clock.now, earliest[0])
            earliest[2].set()


class Service:
    """Answers every request after `seconds`."""

    def __init__(self, world: World, seconds: float = 1.0) -> None:
        self.world = world
        self.seconds = seconds
        self.sent: list[tuple[int, float, float]] = []
        self.num_inside = 0
        self.most_inside = 0

    async def send(self, number: int, intended_at: float) -> RequestRecord:
        sent_at = self.world.clock()
        self.sent.append((number, intended_at, sent_at))
        self.num_inside += 1
        self.most_inside = max(self.most_inside, self.num_inside)
        await self.world.sleep(self.seconds)
        self.num_inside -= 1
        return RequestRecord(
            tenant="a",
            intended_at=intended_at,
            sent_at=sent_at,
            finished_at=self.world.clock(),
            status="ok",
        )


def a_loop(world: World, send: Send, arrivals: list[float], concurrency: int = 10) -> OpenLoop:
    return OpenLoop(
        send,
        world.clock,
        arrivals=arrivals,
        offered_s=arrivals[-1],
        concurrency=concurrency,
        sleep=world.sleep,
    )


async def test_requests_are_sent_when_they_are_due_however_slow_the_answers() -> None:
    world = World()
    service = Service(world, seconds=60.0)
    running = asyncio.create_task(a_loop(world, service.send, [0.5, 1.0, 4.0]).run())
    await world.turn(running)
    run = running.result()
    assert service.sent == [(0, 100.5, 100.5), (1, 101.0, 101.0), (2, 104.0, 104.0)]
    assert [record.e2e_s for record in run.records] == [60.0, 60.0, 60.0]
    assert (run.started_at, run.ended_at, run.offered_s) == (100.0, 164.0, 4.0)
    assert (run.num_unfinished, run.is_interrupted, run.concurrency) == (0, False, 10)


async def test_what_finds_no_place_waits_in_order_and_its_latency_counts_from_when_it_was_due() -> None:
    world = World()
    service = Service(world, seconds=10.0)
    running = asyncio.create_task(a_loop(world, service.send, [1.0, 2.0, 3.0, 4.0], concurrency=2).run())
    await world.turn(running)
    assert service.most_inside == 2
    assert service.sent == [(0, 101.0, 101.0), (1, 102.0, 102.0), (2, 103.0, 111.0), (3, 104.0, 112.0)]
    records = running.result().records
    assert [record.send_lag_s for record in records] == [0.0, 0.0, 8.0, 8.0]
    assert [record.e2e_s for record in records] == [10.0, 10.0, 18.0, 18.0]


async def test_requests_due_at_once_are_sent_at_once() -> None:
    world = World()
    service = Service(world)
    running = asyncio.create_task(a_loop(world, service.send, [0.0, 0.0, 0.0]).run())
    await world.turn(running)
    assert (service.most_inside, len(running.result().records)) == (3, 3)


async def test_an_interrupt_keeps_what_ended_counts_what_did_not_and_sends_no_more() -> None:
    world = World()
    service = Service(world, seconds=1.5)
    loop: OpenLoop

    async def send(number: int, intended_at: float) -> RequestRecord:
        if number == 2:
            loop.interrupt()
        return await service.send(number, intended_at)

    loop = a_loop(world, send, [1.0, 2.0, 3.0, 4.0, 5.0])
    running = asyncio.create_task(loop.run())
    await world.turn(running)
    run = running.result()
    assert (len(run.records), run.num_unfinished, run.num_sent, run.is_interrupted) == (1, 2, 3, True)
    assert run.offered_s == 3.0


async def test_a_fault_of_ours_ends_the_run_at_once() -> None:
    world = World()

    async def send(number: int, intended_at: float) -> RequestRecord:
        raise RuntimeError("a fault")

    running = asyncio.create_task(a_loop(world, send, [1.0, 1000.0]).run())
    await world.turn(running)
    with pytest.raises(RuntimeError, match="a fault"):
        running.result()
    assert world.clock.now == 101.0


async def test_who_cancels_the_run_cancels_its_requests() -> None:
    world = World()
    service = Service(world)
    running = asyncio.create_task(a_loop(world, service.send, [0.0]).run())
    for _ in range(20):
        await asyncio.sleep(0)
    assert service.num_inside == 1
    running.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert running.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
