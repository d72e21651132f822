"""Where a key may be used from: networks of IPv4 and IPv6.

An IPv4 address in IPv6's dress (`::ffff:10.0.0.1`) is that IPv4 address.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_MAPPED_BITS = 96
"""Of `::ffff:0:0/96`, which holds the IPv4 addresses."""


def parse_address(text: str | None) -> Address | None:
    """None for what is no address."""
    try:
        address = ip_address(text or "")
    except ValueError:
        return None
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


@lru_cache(maxsize=4096)
def parse_network(text: str) -> Network:
    """Raises ValueError for what is no network, or has bits set behind its prefix."""
    network = ip_network(text)
    if isinstance(network, IPv6Network) and network.prefixlen >= _MAPPED_BITS:
        first = network.network_address.ipv4_mapped
        if first is not None:
            return IPv4Network((first, network.prefixlen - _MAPPED_BITS))
    return network


def is_in_any(address: str | None, networks: Sequence[str]) -> bool:
    """An address that is unknown or none lies in no network. Raises ValueError as `parse_network` does."""
    parsed = parse_address(address)
    return parsed is not None and any(parsed in parse_network(network) for network in networks)
