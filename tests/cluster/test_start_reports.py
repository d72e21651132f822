"""What replicas tell the launcher of their start, through a real Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import msgspec
import pytest
from redis import Redis as SyncRedis

from cluster.start_reports import StageReport, StartReports
from tests.builders import FakeClock


@pytest.fixture
def reports_id() -> str:
    return f"{Random().getrandbits(64):016x}"


@pytest.fixture
def reports(redis_url: str, reports_id: str) -> Iterator[StartReports]:
    reports = StartReports(redis_url, reports_id)
    yield reports
    reports.close()


def test_reports_come_back_whole_in_order_and_once(reports: StartReports) -> None:
    first = StageReport("a", "weights", 1.5, "tiny, float32")
    second = StageReport("b", "KV pool", 0.0, error="out of memory", remedy="use less")
    reports.push(first)
    reports.push(second)
    assert reports.pop_all() == [first, second]
    assert reports.pop_all() == []


def test_another_start_on_the_same_redis_hears_nothing(reports: StartReports, redis_url: str) -> None:
    reports.push(StageReport("a", "weights", 1.5))
    other = StartReports(redis_url, "other")
    assert other.pop_all() == []
    other._redis.close()


def test_what_nobody_reads_goes_by_itself(reports: StartReports, redis_url: str, reports_id: str) -> None:
    reports.push(StageReport("a", "weights", 1.5))
    with SyncRedis.from_url(redis_url) as client:
        assert 0 < client.ttl(f"headrace:start:{reports_id}") <= 3600  # type: ignore[operator]


def test_a_stage_is_reported_when_it_has_passed(reports: StartReports) -> None:
    clock = FakeClock(10.0)
    with reports.stage("a", "weights", clock) as detail:
        detail("tiny")
        detail("float32")
        clock.advance(2.0)
        assert reports.pop_all() == []
        assert reports.current == "weights"
    assert reports.pop_all() == [StageReport("a", "weights", 2.0, "tiny; float32")]


def test_a_stage_that_fails_is_not_reported_as_passed_and_stays_the_current_one(
    reports: StartReports,
) -> None:
    assert reports.current == "replica"
    with reports.stage("a", "weights", FakeClock()):
        pass
    with pytest.raises(MemoryError), reports.stage("a", "KV pool", FakeClock()):
        raise MemoryError
    assert [report.stage for report in reports.pop_all()] == ["weights"]
    assert reports.current == "KV pool"


def test_what_is_no_report_is_refused(reports: StartReports, redis_url: str, reports_id: str) -> None:
    with SyncRedis.from_url(redis_url) as client:
        client.rpush(f"headrace:start:{reports_id}", b"\x80\x04N.")
    with pytest.raises(msgspec.DecodeError):
        reports.pop_all()


def test_a_replica_starts_without_redis(tmp_path: Path) -> None:
    reports = StartReports(f"unix://{tmp_path}/nobody.sock", "c")
    with reports.stage("a", "weights", FakeClock()):
        pass
    assert reports.current == "weights"
    reports.close()
