"""The text stream's promise: joined deltas are the whole text, cut before the first stop string."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.stop_matcher import StopMatcher
from engine.text_stream import TextStream
from tests.builders_text import decoded_so_far, num_tokens_to_stop, whole_text

BYTES = [bytes([value]) for value in range(256)]


def stream_of(vocabulary: Sequence[bytes], stop: tuple[str, ...] = ()) -> TextStream:
    return TextStream(vocabulary.__getitem__, stop)


def run(
    vocabulary: Sequence[bytes], stop: tuple[str, ...] = (), chunk: int = 1
) -> tuple[list[str], TextStream]:
    """All tokens of `vocabulary` in order, `chunk` at a time, and the tail."""
    stream = stream_of(vocabulary, stop)
    token_ids = range(len(vocabulary))
    deltas = [stream.push(token_ids[at : at + chunk]) for at in range(0, len(vocabulary), chunk)]
    return [*deltas, stream.finish()], stream


# Few characters, so that stop strings are met, missed by one and cut by token borders.
texts = st.text(alphabet="abc한é🇩e\u0301", max_size=24)
stops = st.lists(st.text(alphabet="abc한🇩\u0301\ufffd", min_size=1, max_size=5), max_size=5).map(tuple)


@st.composite
def tokenised(draw: st.DrawFn) -> list[bytes]:
    """Bytes of a text, sometimes with junk in it, cut anywhere: inside characters too."""
    data = draw(texts).encode() + draw(st.binary(max_size=4)) + draw(texts).encode()
    data = data[: draw(st.integers(0, len(data)))]
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=12)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(tokenised(), stops, st.integers(1, 4))
def test_joined_deltas_are_the_whole_text_for_any_chunking(
    tokens: list[bytes], stop: tuple[str, ...], chunk: int
) -> None:
    deltas, stream = run(tokens, stop, chunk)
    assert ("".join(deltas), stream.stopped) == whole_text(tokens, stop)
    assert stream.num_tokens + stream.num_discarded == len(tokens)
    assert stream.num_tokens == num_tokens_to_stop(tokens, stop)


@given(
    st.text(alphabet="ab", max_size=30), st.lists(st.text(alphabet="ab", min_size=2, max_size=8), max_size=4)
)
def test_stops_that_share_their_beginnings_with_each_other_and_themselves(text: str, stop: list[str]) -> None:
    tokens = [character.encode() for character in text]
    deltas, stream = run(tokens, tuple(stop))
    assert ("".join(deltas), stream.stopped) == whole_text(tokens, stop)


@given(tokenised(), stops)
def test_what_was_sent_is_never_taken_back_and_nothing_is_held_without_need(
    tokens: list[bytes], stop: tuple[str, ...]
) -> None:
    whole, _ = whole_text(tokens, stop)
    stream = stream_of(tokens, stop)
    sent = ""
    for count in range(len(tokens)):
        sent += stream.push([count])
        assert whole.startswith(sent)
        if not stream.stopped:
            held = decoded_so_far(tokens[: count + 1])[len(sent) :]
            assert held == "" or any(one.startswith(held) and one != held for one in stop)


@given(tokenised(), stops)
def test_a_token_is_settled_as_soon_as_all_its_text_is_sent(
    tokens: list[bytes], stop: tuple[str, ...]
) -> None:
    """By its last character: what that one is, later tokens may still say."""
    stream = stream_of(tokens, stop)
    num_sent = 0
    for count in range(1, len(tokens) + 1):
        num_sent += len(stream.push([count - 1]))
        if stream.stopped:
            break
        ends = [len(b"".join(tokens[:end]).decode("utf-8", errors="replace")) for end in range(1, count + 1)]
        assert stream.num_settled_tokens == sum(end <= num_sent for end in ends)
        assert stream.num_characters == len(decoded_so_far(tokens[:count]))
    stream.finish()
    assert stream.num_settled_tokens == stream.num_tokens


@given(st.binary(max_size=24))
def test_bytes_that_are_no_utf8_give_the_same_replacement_characters_one_by_one(data: bytes) -> None:
    stream = TextStream(BYTES.__getitem__)
    text = "".join(stream.push([value]) for value in data) + stream.finish()
    assert text == data.decode("utf-8", errors="replace")


class TestStopStrings:
    def test_a_stop_over_token_borders_is_never_sent(self) -> None:
        deltas, stream = run([b"ABC", b"DEF", b"G", b"HI", b"JK"], ("DEFGHIJ",))
        assert deltas == ["ABC", "", "", "", "", ""]
        assert (stream.stopped, stream.num_tokens, stream.num_discarded) == (True, 5, 0)

    def test_text_before_the_stop_inside_a_token_is_sent_and_the_rest_is_dropped(self) -> None:
        deltas, stream = run([b"one END two", b"three", b"four"], ("END",))
        assert deltas == ["one ", "", "", ""]
        assert (stream.num_tokens, stream.num_discarded) == (1, 2)

    def test_tokens_after_the_stop_in_one_push_are_discarded(self) -> None:
        stream = stream_of([b"a", b"X", b"b", b"c"], ("X",))
        assert stream.push([0, 1, 2, 3]) == "a"
        assert (stream.num_tokens, stream.num_discarded) == (2, 2)

    def test_held_text_is_flushed_once_when_no_stop_comes(self) -> None:
        stream = stream_of([b"say EN"], ("END",))
        assert stream.push([0]) == "say "
        assert [stream.finish(), stream.finish()] == ["EN", ""]
        assert not stream.stopped

    def test_held_text_is_released_as_soon_as_it_can_be_no_stop(self) -> None:
        deltas, _ = run([b"EN", b"O", b"EN", b"D"], ("END",))
        assert deltas == ["", "ENO", "", "", ""]

    def test_of_a_stop_and_its_prefix_the_prefix_completes_first(self) -> None:
        deltas, _ = run([b"..END", b"ING"], ("ENDING", "END"))
        assert "".join(deltas) == ".."

    def test_of_stops_that_complete_together_the_one_that_began_first_wins(self) -> None:
        deltas, _ = run([b"say THE", b" END"], ("END", "THE END"))
        assert "".join(deltas) == "say "

    def test_a_stop_inside_a_longer_one_that_fails_is_found(self) -> None:
        deltas, stream = run([b"abcx", b"y"], ("abcd", "bc"))
        assert "".join(deltas) == "a"
        assert stream.num_tokens == 1

    def test_a_stop_that_overlaps_itself_is_found_at_its_first_place(self) -> None:
        assert "".join(run([b"aab", b"aabaaab"], ("aabaaab",))[0]) == "aab"

    def test_a_failed_match_falls_back_more_than_once(self) -> None:
        assert "".join(run([b"aabaaab", b"aaac"], ("aabaaac",))[0]) == "aaba"
        assert "".join(run([b"aaab", b"b"], ("aaaa", "bb"))[0]) == "aaa"

    def test_a_stop_completed_by_the_last_token_leaves_no_tail(self) -> None:
        deltas, stream = run([b"a", b"EN", b"D"], ("END",))
        assert ("".join(deltas), stream.num_tokens, stream.num_discarded) == ("a", 3, 0)

    def test_a_stop_inside_a_split_character_border(self) -> None:
        data = "한국".encode()
        deltas, stream = run([data[:2], data[2:4], data[4:], b"!"], ("국",))
        assert ("".join(deltas), stream.num_tokens, stream.num_discarded) == ("한", 3, 1)

    def test_a_replacement_character_at_the_end_can_complete_a_stop(self) -> None:
        deltas, stream = run([b"a", b"\xe2\x82"], ("\ufffd",))
        assert ("".join(deltas), stream.stopped, stream.num_tokens) == ("a", True, 2)

    def test_a_control_token_counts_and_says_nothing(self) -> None:
        deltas, stream = run([b"a", b"", b"b"])
        assert (deltas, stream.num_tokens) == (["a", "", "b", ""], 3)

    def test_an_empty_stop_string_is_refused(self) -> None:
        with pytest.raises(ValueError, match="must not be empty"):
            stream_of([b"a"], ("x", ""))


class TestCharacters:
    @pytest.mark.parametrize("text", ["🇩🇪", "한국어", "e\u0301", "👩‍👩‍👧", "a😀b"])
    @pytest.mark.parametrize("chunk", [1, 2, 3, 4])
    def test_a_character_over_tokens_is_sent_whole(self, text: str, chunk: int) -> None:
        deltas, _ = run([bytes([value]) for value in text.encode()], chunk=chunk)
        assert "".join(deltas) == text
        assert all("\ufffd" not in delta for delta in deltas)

    def test_an_answer_cut_inside_a_character_ends_with_one_replacement_character(self) -> None:
        deltas, _ = run([b"a", b"\xf0", b"\x9f", b"\x98"])
        assert deltas == ["a", "", "", "", "\ufffd"]


def steps(stop: tuple[str, ...], text: str) -> int:
    """Look-ups that the matcher makes for `text`, counted in its own table."""
    matcher = StopMatcher(stop)
    looked_up = 0

    class Counting(dict[str, int]):
        def __contains__(self, key: object) -> bool:
            nonlocal looked_up
            looked_up += 1
            return super().__contains__(key)

    matcher._next = [Counting(edges) for edges in matcher._next]
    for character in text:
        matcher.read(character)
    return looked_up


@pytest.mark.parametrize("length", [16, 256])
def test_text_that_almost_matches_costs_the_same_whatever_the_length_of_the_stop(length: int) -> None:
    stop = tuple("a" * length + ending for ending in "bcde")
    text = ("a" * (length - 1) + "x") * (4096 // length)
    assert steps(stop, text) <= 2 * len(text)


def test_no_more_is_held_than_the_stop_string_is_long() -> None:
    stream = stream_of([b"a"], ("a" * 5000 + "b",))
    sent = sum(len(stream.push([0])) for _ in range(20_000))
    assert sent == 15_000
    assert len(stream.finish()) == 5000
