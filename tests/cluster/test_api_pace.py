"""When a stream must do something though no token came. Times in seconds; the request came at 100."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cluster.api.pace import Due, StreamPace, Timings

TIMINGS = Timings(commit_after_s=12, keep_alive_s=10, unread_s=30)


def pace(deadline: float = 700) -> StreamPace:
    return StreamPace(TIMINGS, arrived=100, deadline=deadline)


def test_headers_are_committed_after_twelve_seconds_then_a_comment_every_ten() -> None:
    stream = pace()
    assert [stream.due(now) for now in (111.9, 112, 112.1)] == [None, Due.COMMIT, None]
    assert [stream.due(now) for now in (121.9, 122, 122, 131.9, 132)] == [
        *(None, Due.KEEP_ALIVE, None),
        *(None, Due.KEEP_ALIVE),
    ]


def test_silence_counts_from_the_last_thing_sent() -> None:
    stream = pace()
    stream.begin_send(103)
    stream.end_send(104)
    assert [stream.due(now) for now in (112, 113.9, 114)] == [None, None, Due.KEEP_ALIVE]


def test_a_client_that_takes_nothing_for_thirty_seconds_is_given_up_and_gets_no_comments() -> None:
    stream = pace()
    stream.begin_send(103)
    assert [stream.due(now) for now in (113, 123, 132.9, 133)] == [None, None, None, Due.GIVE_UP]


def test_a_client_that_takes_something_is_not_given_up() -> None:
    stream = pace()
    stream.begin_send(103)
    stream.end_send(132)
    stream.begin_send(132)
    assert stream.due(150) is None


def test_an_expired_deadline_is_told_once_whatever_else_goes_on() -> None:
    stream = pace(deadline=105)
    assert [stream.due(now) for now in (104.9, 105, 106)] == [None, Due.EXPIRE, None]
    blocked = pace(deadline=105)
    blocked.begin_send(101)
    assert [blocked.due(now) for now in (105, 131)] == [Due.EXPIRE, Due.GIVE_UP]


gaps = st.lists(st.floats(0, 40), max_size=12)


@given(gaps, st.floats(1, 200))
def test_nothing_is_due_before_the_next_look(gaps: list[float], patience: float) -> None:
    """Sends begin and end at any time between two looks; what is due is seen at its time."""
    stream = pace(deadline=100 + patience)
    now = look_at = 100.0
    is_sending = False
    for gap in gaps:
        now += gap
        while look_at <= now:
            if stream.due(look_at) is Due.GIVE_UP:
                return
            wait = stream.next_look(look_at)
            assert 0 <= wait < TIMINGS.keep_alive_s + 1e-6
            assert wait < 1e-6 or stream.due(look_at + wait - 1e-6) is None
            look_at += max(wait, 1e-6)
        (stream.end_send if is_sending else stream.begin_send)(now)
        is_sending = not is_sending
        assert now >= look_at - 1e-6 or stream.due(look_at - 1e-6) is None
