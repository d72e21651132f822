"""What keeps outcomes secret."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.outcomes.outcome import Mark, StoredOutcome
from tenants.outcomes.sealing import Sealer
from tenants.store import CorruptRecord
from tests.builders_tenants import SECRET, a_tenant

SEALER = Sealer(SECRET)
ACME = a_tenant()
ASKED = (ACME, "/v1/completions", "key-1", b'{"prompt":"hi"}')
MARK = SEALER.mark(*ASKED)
OUTCOME = StoredOutcome({"content-type": "application/json"}, b'{"text":"a canary"}')


def test_equal_requests_have_equal_marks() -> None:
    assert SEALER.mark(*ASKED) == MARK
    assert Sealer(SECRET).mark(*ASKED) == MARK


def test_the_key_s_hash_tells_tenant_route_and_key_apart_and_the_body_s_all() -> None:
    others = [
        SEALER.mark(a_tenant("globex"), *ASKED[1:]),
        SEALER.mark(a_tenant(created_at=2.0), *ASKED[1:]),
        SEALER.mark(ACME, "/v1/chat/completions", *ASKED[2:]),
        SEALER.mark(ACME, "/v1/completions", "key-2", ASKED[3]),
        Sealer(b"another secret").mark(*ASKED),
    ]
    assert len({mark.key_hash for mark in [MARK, *others]}) == 6
    assert len({mark.body_hash for mark in [MARK, *others]}) == 6
    other_body = SEALER.mark(*ASKED[:3], b'{"prompt":"ho"}')
    assert other_body.key_hash == MARK.key_hash
    assert other_body.body_hash != MARK.body_hash


def test_a_mark_shows_nothing_but_the_tenant() -> None:
    shown = msgspec.json.encode(MARK)
    for hidden in (b"key-1", b"hi", b"completions", SECRET):
        assert hidden not in shown


@given(st.dictionaries(st.text(), st.text()), st.binary(max_size=1000))
def test_what_was_sealed_is_opened(headers: dict[str, str], body: bytes) -> None:
    outcome = StoredOutcome(headers, body)
    assert SEALER.open(MARK, SEALER.seal(MARK, outcome)) == outcome


def test_sealed_it_shows_nothing_and_never_the_same_twice() -> None:
    sealed = SEALER.seal(MARK, OUTCOME)
    assert b"canary" not in sealed
    assert b"json" not in sealed
    assert SEALER.seal(MARK, OUTCOME)[:12] != sealed[:12]  # nonces


@pytest.mark.parametrize(
    "of_another",
    [
        lambda mark: msgspec.structs.replace(mark, tenant_id="globex"),
        lambda mark: msgspec.structs.replace(mark, key_hash="0" * 64),
        lambda mark: msgspec.structs.replace(mark, body_hash="0" * 64),
    ],
    ids=["tenant", "key", "body"],
)
def test_nothing_is_opened_in_another_place(of_another: Callable[[Mark], Mark]) -> None:
    with pytest.raises(CorruptRecord):
        SEALER.open(of_another(MARK), SEALER.seal(MARK, OUTCOME))


def test_nothing_is_opened_with_another_secret() -> None:
    with pytest.raises(CorruptRecord):
        Sealer(b"another secret").open(MARK, SEALER.seal(MARK, OUTCOME))


@given(st.binary(max_size=100))
def test_junk_is_corrupt_and_never_told(junk: bytes) -> None:
    with pytest.raises(CorruptRecord) as caught:
        SEALER.open(MARK, junk)
    assert str(caught.value) == "an outcome was not sealed for its place with this root secret"


@given(st.data())
def test_one_changed_bit_is_found(data: st.DataObject) -> None:
    sealed = bytearray(SEALER.seal(MARK, OUTCOME))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    sealed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptRecord):
        SEALER.open(MARK, bytes(sealed))
