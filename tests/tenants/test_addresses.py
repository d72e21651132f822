"""Networks and addresses: v4, v6, v4 in v6's dress, and junk."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tenants.addresses import is_in_any, parse_address, parse_network

INSIDE = [
    ("10.0.0.0", "10.0.0.0/8"),
    ("10.255.255.255", "10.0.0.0/8"),
    ("192.0.2.7", "192.0.2.7"),
    ("::ffff:192.0.2.7", "192.0.2.0/24"),
    ("192.0.2.7", "::ffff:192.0.2.0/120"),
    ("::ffff:c000:207", "::ffff:192.0.2.0/120"),
    ("2001:db8::1", "2001:db8::/32"),
    ("2001:DB8:0:0::1", "2001:db8::1"),
    ("fe80::1%eth0", "fe80::/10"),
    ("203.0.113.9", "0.0.0.0/0"),
    ("203.0.113.9", "::ffff:0:0/96"),
    ("::1", "::/0"),
]
OUTSIDE = [
    ("11.0.0.0", "10.0.0.0/8"),
    ("192.0.2.8", "192.0.2.7"),
    ("::ffff:192.0.3.7", "192.0.2.0/24"),
    ("2001:db9::1", "2001:db8::/32"),
    ("10.0.0.1", "::/0"),
    ("::1", "0.0.0.0/0"),
    ("::a00:1", "10.0.0.0/8"),  # the long dead IPv4-compatible form is an address of its own
]


@pytest.mark.parametrize(("address", "network"), INSIDE)
def test_an_address_lies_in_its_network(address: str, network: str) -> None:
    assert is_in_any(address, ("198.51.100.0/24", network))


@pytest.mark.parametrize(("address", "network"), OUTSIDE)
def test_an_address_lies_in_no_other_network(address: str, network: str) -> None:
    assert not is_in_any(address, ("198.51.100.0/24", network))


@pytest.mark.parametrize(
    "network", ["", "10", "10.0.0.1/8", "10.0.0.0/33", "::/129", "10.0.0.0/", "all", "*"]
)
def test_what_is_no_network_is_an_error(network: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_network(network)


@given(st.none() | st.text(max_size=60))
def test_what_is_no_address_lies_nowhere(text: str | None) -> None:
    if parse_address(text) is None:
        assert not is_in_any(text, ("0.0.0.0/0", "::/0"))


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_the_same_in_either_dress(address: object) -> None:
    assert parse_address(f"::ffff:{address}") == parse_address(str(address)) == address
