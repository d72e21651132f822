"""From records to figures: exact values of a run that fits on one screen."""

from loadtest.record import LoadRun, RequestRecord
from loadtest.slo import Slo
from loadtest.summary import summarize

SLO = Slo(ttft_ms=1000, tpot_ms=125)


def a_record(**fields: object) -> RequestRecord:
    """Due at 10.0; text at 10.5, 10.625, 10.75, its last token at 10.875; ends at 11.0."""
    plain = {
        "tenant": "a",
        "intended_at": 10.0,
        "sent_at": 10.0,
        "finished_at": 11.0,
        "status": "ok",
        "token_times": (10.5, 10.625, 10.75),
        "last_token_at": 10.875,
        "prompt_tokens": 100,
        "output_tokens": 4,
        "cached_tokens": 25,
    }
    return RequestRecord(**plain | fields)


def a_run(*records: RequestRecord, **fields: object) -> LoadRun:
    plain = {"records": records, "started_at": 10.0, "ended_at": 20.0, "concurrency": 2}
    return LoadRun(**plain | fields)


def failed(status: str, **fields: object) -> RequestRecord:
    nothing = {"token_times": (), "prompt_tokens": 0, "output_tokens": 0, "cached_tokens": 0}
    return a_record(**{"status": status} | nothing | fields)


def test_one_request_is_measured_from_when_it_was_due() -> None:
    record = a_record()
    assert (record.ttft_s, record.e2e_s) == (0.5, 1.0)
    assert record.itl_s == [0.125, 0.125]
    assert record.tpot_s == 0.125  # 0.375 s for the 3 tokens after the first


def test_what_was_not_seen_has_no_latency() -> None:
    whole = a_record(token_times=())
    assert (whole.ttft_s, whole.itl_s, whole.tpot_s, whole.e2e_s) == (None, [], None, 1.0)
    assert a_record(token_times=(10.5,), output_tokens=1).tpot_s is None


def test_the_figures_of_a_small_run() -> None:
    slow = a_record(
        tenant="b",
        token_times=(11.5, 11.75),
        last_token_at=11.75,
        output_tokens=2,
        finished_at=12.0,
        cached_tokens=0,
    )
    summary = summarize(
        a_run(
            a_record(), slow, failed("429", reason="first"), failed("429", reason="later"), failed("cut off")
        ),
        SLO,
    )
    tenants = summary.pop("per_tenant")
    assert summary == {
        "requests": 5,
        "offered_rps": 0.5,
        "achieved_rps": 0.2,
        "goodput_rps": 0.1,
        "rejected": 2,
        "errors": 1,
        "statuses": {"429": 2, "cut off": 1, "ok": 2},
        "reasons": {"429": "first"},
        "prompt_tokens": 200,
        "output_tokens": 6,
        "output_tokens_per_s": 0.6,
        "cached_tokens": 25,
        "hit_rate": 0.125,
        "ideal_hit_rate": None,
        "hits_of_ideal": None,
        "replicas": {},
        "without_replica": 5,
        "in_flight_max_over_mean": None,
        "send_lag_p99_ms": 0.0,
        "send_lag_max_ms": 0.0,
        "ttft_p50_ms": 500.0,
        "ttft_p90_ms": 1500.0,
        "ttft_p99_ms": 1500.0,
        "itl_p50_ms": 125.0,
        "itl_p90_ms": 250.0,
        "itl_p99_ms": 250.0,
        "tpot_p50_ms": 125.0,
        "tpot_p90_ms": 250.0,
        "tpot_p99_ms": 250.0,
        "e2e_p50_ms": 1000.0,
        "e2e_p90_ms": 2000.0,
        "e2e_p99_ms": 2000.0,
        "slo": {"ttft_ms": 1000, "tpot_ms": 125},
        "loop": "closed",
        "concurrency": 2,
        "elapsed_s": 10.0,
        "unfinished": 0,
        "interrupted": False,
    }
    assert sorted(tenants) == ["a", "b"]
    assert (tenants["a"]["requests"], tenants["a"]["goodput_rps"], tenants["a"]["hit_rate"]) == (4, 0.1, 0.25)
    assert (tenants["b"]["requests"], tenants["b"]["goodput_rps"], tenants["b"]["ttft_p50_ms"]) == (
        1,
        0.0,
        1500.0,
    )


def test_a_failed_request_counts_in_no_latency_and_no_tokens() -> None:
    broken = a_record(status="cut off", token_times=(19.0,), finished_at=19.0)
    assert summarize(a_run(a_record(), broken), SLO)["ttft_p99_ms"] == 500.0
    assert summarize(a_run(a_record(), broken), SLO)["output_tokens"] == 4


def test_a_run_of_nothing_has_no_latencies_and_no_rates() -> None:
    summary = summarize(a_run(ended_at=10.0), SLO)
    assert (summary["requests"], summary["offered_rps"], summary["hit_rate"]) == (0, 0.0, None)
    assert (summary["ttft_p50_ms"], summary["e2e_p99_ms"], summary["per_tenant"]) == (None, None, {})


def test_an_interrupted_run_says_so() -> None:
    summary = summarize(a_run(a_record(), num_unfinished=3, is_interrupted=True), SLO)
    assert (summary["unfinished"], summary["interrupted"]) == (3, True)


def test_an_open_run_offers_what_was_due_however_long_the_answers_took() -> None:
    summary = summarize(a_run(a_record(), a_record(), offered_s=4.0), SLO)
    assert (summary["loop"], summary["offered_rps"], summary["achieved_rps"]) == ("open", 0.5, 0.2)
    assert summary["per_tenant"]["a"]["offered_rps"] == 0.5


def test_hits_stand_beside_the_ideal() -> None:
    summary = summarize(a_run(a_record()), SLO, ideal_hit_rate=0.75)
    assert (summary["hit_rate"], summary["ideal_hit_rate"], summary["hits_of_ideal"]) == (0.25, 0.75, 0.3333)
    for nothing in (None, 0.0):
        assert summarize(a_run(a_record()), SLO, ideal_hit_rate=nothing)["hits_of_ideal"] is None


def test_lateness_and_replicas_are_those_of_all_requests() -> None:
    records = [a_record(sent_at=10.0 + index / 1000, replica="r1") for index in range(200)]
    summary = summarize(a_run(*records, failed("429", sent_at=10.5)), SLO)
    assert (summary["send_lag_p99_ms"], summary["send_lag_max_ms"]) == (198.0, 500.0)
    assert (summary["replicas"]["r1"]["requests"], summary["without_replica"]) == (200, 1)
