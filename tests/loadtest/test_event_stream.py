"""Server-sent events: the same events however the bytes were cut."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.event_stream import EventStream


@pytest.mark.parametrize(
    ("received", "events"),
    [
        (b"data: a\n\n", [b"a"]),
        (b"data:a\n\ndata:  b\n\n", [b"a", b" b"]),
        (b"data: a\r\n\r\n", [b"a"]),
        (b"data: a\ndata: b\n\n", [b"a\nb"]),
        (b": keep-alive\n\ndata: a\n\n", [b"a"]),
        (b"event: x\nid: 1\ndata: a\n\n", [b"a"]),
        (b"data: never ended\n", []),
        (b"\n\n\n", []),
    ],
)
def test_events(received: bytes, events: list[bytes]) -> None:
    assert EventStream().feed(received) == events


PIECES = st.lists(st.sampled_from([b"data: a", b"data:", b": c", b"\n", b"\r\n", b"x", b"\n\n"]))


@given(PIECES, st.lists(st.integers(0, 60)))
def test_the_cuts_do_not_matter(pieces: list[bytes], cuts: list[int]) -> None:
    received = b"".join(pieces)
    stream, events = EventStream(), []
    edges = [0, *sorted(min(cut, len(received)) for cut in cuts), len(received)]
    for begin, end in pairwise(edges):
        events += stream.feed(received[begin:end])
    assert events == EventStream().feed(received)
