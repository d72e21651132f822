"""API keys: what one looks like, and that its hash says nothing without the secret."""

from hypothesis import given
from hypothesis import strategies as st

from tenants.api_key import hash_key, is_well_formed, new_key

KEY = "hr-0123456789ABCDEFGHJKMNPQRSTVWXYZ63zdr6"


def test_new_keys_are_well_formed_and_differ() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(is_well_formed(key) and len(key) == 41 for key in keys)


@given(st.integers(0, 40), st.characters())
def test_one_wrong_character_is_noticed(position: int, character: str) -> None:
    wrong = KEY[:position] + character + KEY[position + 1 :]
    assert is_well_formed(wrong) is (wrong == KEY)


@given(st.text(max_size=60))
def test_any_text_is_judged_without_an_error(text: str) -> None:
    assert not is_well_formed(text)
    assert not is_well_formed(f"hr-{text}")


def test_the_hash_depends_on_the_key_and_the_secret() -> None:
    assert hash_key(b"s", "hr-a") == hash_key(b"s", "hr-a")
    assert len({hash_key(b"s", "hr-a"), hash_key(b"s", "hr-b"), hash_key(b"t", "hr-a")}) == 3
