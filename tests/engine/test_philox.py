"""Philox4x32-10 against the known answers of the paper's authors (Random123), and the number drawn."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.philox import Words, philox4x32, uniform

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(counter: Words, key: tuple[int, int], words: Words) -> None:
    assert philox4x32(counter, key) == words


def test_the_number_is_the_upper_24_bits_of_the_first_word() -> None:
    assert uniform(0, 0, 0) == 0x6627E8 / 2**24


def test_seed_is_the_key_and_position_the_counter() -> None:
    word = philox4x32((5, 2, 0, 0), (0x89ABCDEF, 0x01234567))[0]
    assert uniform(0x0123456789ABCDEF, 5, 2) == (word >> 8) / 2**24


@given(st.integers(-(2**70), 2**70), st.integers(0, 2**31), st.integers(0, 128))
def test_it_is_in_the_unit_interval_and_seeds_are_mod_2_to_64(seed: int, index: int, sibling: int) -> None:
    drawn = uniform(seed, index, sibling)
    assert 0 <= drawn < 1
    assert drawn == uniform(seed + 2**64, index, sibling)
