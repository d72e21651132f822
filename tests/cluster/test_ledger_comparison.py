"""The comparison of the books: what is equal, what is in doubt and why, and what nothing explains."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cluster.ledger_cli.comparison import ComparisonRow, Verdict, compare
from cluster.ledger_cli.evidence import Evidence, GatewayReading, Gone, Reading, spooled_from
from tenants.ledger.settlement import Settlement
from tenants.ledger.usage import Sums
from tests.builders_spool import DAY_S, NOON, a_settlement

DAY = "2026-11-30"
SETTLED = [a_settlement(1), a_settlement(2), a_settlement(3, tenant_id="other-one", gateway_id="g2")]
USAGE = {("acme", DAY): Sums(2, 20, 8, 14, 3), ("other-one", DAY): Sums(1, 10, 4, 7, 3)}


def gateway(tenant: str, sums: Sums, discarded: int = 0, lost_links: int = 0) -> GatewayReading:
    return GatewayReading(tenants={tenant: sums}, discarded_tokens=discarded, lost_links=lost_links)


def a_reading(**fields: Any) -> Reading:
    plain: dict[str, Any] = {
        "usage": USAGE,
        "gateways": {
            "g1": gateway("acme", Sums(2, 20, 8, 14, 3), 2),
            "g2": gateway("other-one", Sums(1, 10, 4, 7, 3)),
        },
        "engines": {"replica-1": 20, "replica-2": 3},
        "num_running": 0,
    }
    return Reading(**plain | fields)


def verdict(
    settled: list[Settlement] = SETTLED,
    reading: Reading | None = None,
    before: Reading | None = None,
    gone: Gone | None = None,
    corrupt: tuple[str, ...] = (),
) -> Verdict:
    after = reading or a_reading()
    evidence = Evidence(
        first_day="2026-11-01",
        last_day=DAY,
        before=before or after,
        spooled=spooled_from(settled, corrupt),
        after=after,
        gone=gone or Gone(),
    )
    return compare(evidence)


def places(rows: tuple[ComparisonRow, ...]) -> set[tuple[str, str | None, str, str]]:
    return {(row.check, row.tenant, row.where, row.figure) for row in rows}


def in_state(found: Verdict, state: str) -> set[tuple[str, str | None, str, str]]:
    return places(tuple(row for row in found.rows if row.state == state))


def test_books_that_agree_are_equal_in_every_figure() -> None:
    found = verdict()
    assert {row.state for row in found.rows} == {"equal"}
    assert len(found.rows) == 5 * (2 + 2) + 1
    assert found.in_doubt == ()


@pytest.mark.parametrize("figure", Sums._fields)
@pytest.mark.parametrize("by", [1, -1])
def test_one_too_many_or_too_few_in_any_figure_of_usage_or_metrics_is_a_difference(
    figure: str, by: int
) -> None:
    usage = {**USAGE, ("acme", DAY): _moved(USAGE["acme", DAY], figure, by)}
    found = verdict(reading=a_reading(usage=usage))
    assert places(found.differences) == {("usage", "acme", DAY, figure)}
    metrics = {**a_reading().gateways, "g1": gateway("acme", _moved(Sums(2, 20, 8, 14, 3), figure, by), 2)}
    found = verdict(reading=a_reading(gateways=metrics))
    assert places(found.differences) == {("metrics", "acme", "g1", figure)}


@pytest.mark.parametrize("by", [1, -1])
def test_a_token_too_many_or_too_few_from_the_engines_is_a_difference(by: int) -> None:
    found = verdict(reading=a_reading(engines={"replica-1": 23 + by}))
    assert places(found.differences) == {("engine", None, "all replicas", "completion_tokens")}


def test_a_lost_line_a_doubled_line_and_a_tenant_that_only_one_side_knows_are_differences() -> None:
    assert verdict(settled=SETTLED[:2]).differences
    assert verdict(settled=[*SETTLED, SETTLED[0]]).differences
    assert verdict(reading=a_reading(usage={})).differences
    unknown = {**USAGE, ("ghost", DAY): Sums(1, 1, 0, 1, 1)}
    assert verdict(reading=a_reading(usage=unknown)).differences


def test_days_outside_of_the_question_are_left_out_of_usage() -> None:
    earlier = a_settlement(9, started_at=NOON - 40 * DAY_S, gateway_id="of an earlier cluster")
    assert not verdict(settled=[*SETTLED, earlier]).differences


def test_under_traffic_the_spools_lie_between_before_and_after() -> None:
    before = a_reading(
        usage={("acme", DAY): Sums(1, 10, 4, 7, 1)},
        gateways={"g1": gateway("acme", Sums(1, 10, 4, 7, 1), 2)},
        engines={"replica-1": 9},
    )
    assert {row.state for row in verdict(before=before).rows} == {"equal"}
    assert verdict(settled=SETTLED[:1], reading=before, before=a_reading()).differences


def test_a_request_reaped_and_never_corrected_is_listed_by_its_id() -> None:
    reaped = a_settlement(4, outcome="reaped", gateway_id="dead")
    usage = {**USAGE, ("acme", DAY): Sums(3, 30, 12, 21, 7)}
    gone = Gone(gateways=frozenset({"dead"}))
    found = verdict([*SETTLED, reaped], a_reading(usage=usage, engines={"replica-1": 31}), gone=gone)
    assert not found.differences
    assert in_state(found, "in_doubt") == {("engine", None, "all replicas", "completion_tokens")}
    assert [(doubt.request_id, doubt.gateway) for doubt in found.in_doubt] == [("r4", "dead"), (None, "dead")]


def test_what_a_gone_replica_made_explains_too_few_tokens_and_never_too_many() -> None:
    gone = Gone(replicas=frozenset({"replica-1"}))
    few, many = a_reading(engines={"replica-2": 3}), a_reading(engines={"replica-2": 24})
    assert not verdict(reading=few, gone=gone).differences
    assert "replica-1" in verdict(reading=few, gone=gone).in_doubt[0].what
    assert verdict(reading=many, gone=gone).differences


@pytest.mark.parametrize("cause", ["gone gateway", "lost link", "running request"])
def test_what_was_lost_on_the_way_explains_too_many_tokens_and_never_too_few(cause: str) -> None:
    gone = Gone(gateways=frozenset({"g9"})) if cause == "gone gateway" else Gone()
    fields: dict[str, Any] = {"num_running": 1} if cause == "running request" else {}
    if cause == "lost link":
        metrics = gateway("acme", Sums(2, 20, 8, 14, 3), 2, lost_links=1)
        fields = {"gateways": {**a_reading().gateways, "g1": metrics}}
    many, few = (a_reading(engines={"replica-1": made}, **fields) for made in (24, 22))
    assert not verdict(reading=many, gone=gone).differences
    assert verdict(reading=many, gone=gone).in_doubt
    assert verdict(reading=few, gone=gone).differences


def test_what_a_gone_gateway_charged_and_did_not_write_down_is_in_doubt() -> None:
    """As when it reaped, and died between the ledger and its spool."""
    gone = Gone(gateways=frozenset({"g9"}))
    usage = {**USAGE, ("acme", DAY): Sums(3, 30, 12, 21, 7)}
    reading = a_reading(usage=usage)
    assert verdict(reading=reading).differences
    found = verdict(reading=reading, gone=gone)
    assert not found.differences
    assert in_state(found, "in_doubt") == {("usage", "acme", DAY, figure) for figure in Sums._fields}
    assert [(doubt.tenant, doubt.gateway) for doubt in found.in_doubt] == [("acme", None), (None, "g9")]
    assert f"requests of {DAY} that are in no spool, 1 of them" in found.in_doubt[0].what


@pytest.mark.parametrize("sums", [Sums(2, 20, 8, 15, 3), Sums(1, 10, 4, 7, 1)])
def test_a_gone_gateway_explains_whole_requests_that_the_spools_lack_and_nothing_else(sums: Sums) -> None:
    reading = a_reading(usage={**USAGE, ("acme", DAY): sums})
    assert verdict(reading=reading, gone=Gone(gateways=frozenset({"g9"}))).differences


def test_a_damaged_line_explains_what_the_spools_lack_and_never_what_they_have_too_much() -> None:
    corrupt = ("g2/2026-11-30.jsonl, byte 0: its checksum does not fit",)
    found = verdict(SETTLED[:2], corrupt=corrupt)
    assert not found.differences
    assert ("usage", "other-one", DAY, "cost") in in_state(found, "in_doubt")
    assert ("metrics", "other-one", "g2", "cost") in in_state(found, "in_doubt")
    assert corrupt[0] in found.in_doubt[0].what
    too_much = verdict([*SETTLED, SETTLED[2]], corrupt=corrupt).differences
    assert {("usage", "other-one", DAY, "cost"), ("metrics", "other-one", "g2", "cost")} <= places(too_much)
    assert verdict(SETTLED[1:], corrupt=corrupt).differences, "g1 has no damaged line"


def test_tenants_beyond_the_bound_of_labels_are_compared_together() -> None:
    settled = [a_settlement(number, tenant_id=f"t{number}") for number in range(1, 4)]
    metrics = GatewayReading(
        tenants={"t1": Sums(1, 10, 4, 7, 1), "other": Sums(2, 20, 8, 14, 5)}, discarded_tokens=0, lost_links=0
    )
    usage = {(one.tenant_id, DAY): Sums(1, 10, 4, 7, one.cost) for one in settled}
    reading = a_reading(usage=usage, gateways={"g1": metrics}, engines={"replica-1": 21})
    assert not verdict(settled, reading).differences
    short = msgspec.structs.replace(metrics, tenants={**metrics.tenants, "other": Sums(2, 20, 8, 14, 4)})
    assert verdict(
        settled, a_reading(usage=usage, gateways={"g1": short}, engines={"replica-1": 21})
    ).differences


@pytest.mark.parametrize(("outcome", "num_counted"), [("unserved", 0), ("failed", 1), ("left", 1)])
def test_what_came_to_nothing_is_no_request_of_usage_and_one_of_the_metrics_unless_unserved(
    outcome: str, num_counted: int
) -> None:
    nothing = a_settlement(9, outcome=outcome, prompt_tokens=0, cached_tokens=0, completion_tokens=0, cost=0)
    metrics = {**a_reading().gateways, "g1": gateway("acme", Sums(2 + num_counted, 20, 8, 14, 3), 2)}
    assert not verdict([*SETTLED, nothing], a_reading(gateways=metrics)).differences


def test_without_replicas_in_sight_there_is_nothing_to_compare_the_engines_with() -> None:
    found = verdict(reading=a_reading(engines={}))
    assert {row.check for row in found.rows} == {"usage", "metrics"}


def _moved(sums: Sums, figure: str, by: int) -> Sums:
    return sums._replace(**{figure: getattr(sums, figure) + by})
