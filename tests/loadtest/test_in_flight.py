"""How evenly replicas were loaded: exact values of runs that fit on one line."""

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.in_flight import replica_figures
from loadtest.record import RequestRecord
from tests.loadtest.test_summary import a_record


def on(replica: str, sent_at: float, finished_at: float) -> RequestRecord:
    return a_record(replica=replica, sent_at=sent_at, finished_at=finished_at)


def test_even_replicas_have_a_ratio_of_one() -> None:
    figures = replica_figures([on("a", 0, 2), on("b", 0, 2)])
    assert figures["in_flight_max_over_mean"] == 1.0
    assert figures["replicas"] == {
        "a": {"requests": 1, "in_flight_mean": 1.0},
        "b": {"requests": 1, "in_flight_mean": 1.0},
    }


def test_the_ratio_is_that_of_each_moment_weighted_by_its_length() -> None:
    # 0-1: a 1, b 1 → 1. 1-4: a 3, b 1 → 3 / 2.
    figures = replica_figures([on("a", 0, 4), on("b", 0, 4), on("a", 1, 4), on("a", 1, 4)])
    assert figures["in_flight_max_over_mean"] == (1 * 1.0 + 3 * 1.5) / 4
    assert figures["replicas"]["a"] == {"requests": 3, "in_flight_mean": 2.5}


def test_moments_with_fewer_requests_than_replicas_do_not_count() -> None:
    # 0-2: a 1 alone. 2-3: a 1, b 1. 3-9: nothing. 9-10: b 1 alone.
    figures = replica_figures([on("a", 0, 3), on("b", 2, 3), on("b", 9, 10)])
    assert figures["in_flight_max_over_mean"] == 1.0
    assert figures["replicas"]["a"]["in_flight_mean"] == 0.75
    assert figures["replicas"]["b"]["in_flight_mean"] == 0.5


def test_all_on_one_of_two_counts_once_the_other_was_seen() -> None:
    # 0-1: a 2, b 0 → 2. 5-6: a 1, b 1 → 1.
    figures = replica_figures([on("a", 0, 1), on("a", 0, 1), on("a", 5, 6), on("b", 5, 6)])
    assert figures["in_flight_max_over_mean"] == 1.5


def test_answers_that_name_no_replica_are_counted_apart() -> None:
    figures = replica_figures([on("a", 0, 1), on("", 0, 1), on("", 0, 1)])
    assert figures["without_replica"] == 2
    assert figures["replicas"] == {"a": {"requests": 1, "in_flight_mean": 1.0}}


def test_nothing_in_flight_has_no_ratio() -> None:
    nothing = {"replicas": {}, "without_replica": 0, "in_flight_max_over_mean": None}
    assert replica_figures([]) == nothing
    assert replica_figures([on("a", 1, 1)])["in_flight_max_over_mean"] is None


spans = st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(0, 10))


@settings(max_examples=40)
@given(st.lists(spans, max_size=30))
def test_it_agrees_with_counting_at_every_second(spans: list[tuple[str, int, int]]) -> None:
    records = [on(replica, begin, begin + length) for replica, begin, length in spans]
    num_replicas = len({replica for replica, _, _ in spans})
    ratios = []
    for second in range(41):
        counts = [
            sum(replica == name and begin <= second < begin + length for name, begin, length in spans)
            for replica in "abc"
        ]
        if sum(counts) >= max(num_replicas, 1):
            ratios.append(max(counts) * num_replicas / sum(counts))
    expected = round(sum(ratios) / len(ratios), 4) if ratios else None
    found = replica_figures(records)["in_flight_max_over_mean"]
    assert found == expected or abs(found - expected) < 2e-4
