"""API keys: `hr-` + 32 random characters + a checksum; stored as keyed hashes only.

The checksum rejects typos without asking the store; it is no secret and proves nothing.
"""

from __future__ import annotations

import binascii
import hmac
import secrets
from typing import Annotated, Literal, NewType

import msgspec

from tenants.addresses import parse_network
from tenants.terms import Limits

Scope = Literal["inference", "metrics", "admin", "admin:read"]
KeyHash = NewType("KeyHash", str)

_PREFIX = "hr-"
_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZabcdefghjkmnpqrstvwxyz"  # no I, L, O, U: easy to read aloud
_RANDOM_CHARS = 32  # 32 × log2(54) = 184 bits
_CHECKSUM_CHARS = 6


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of a key: everything but the key. Raises ValueError for a network that is none."""

    key_id: Annotated[str, msgspec.Meta(pattern=r"^key_[0-9a-f]{16}$")]
    tenant_id: str
    key_hash: str
    scopes: tuple[Scope, ...]
    hint: str
    """The key's last four characters, for people to tell keys apart."""
    created_at: float
    expires_at: float | None = None
    name: str = ""
    limits: Limits | None = None
    """Of this key alone, beside its tenant's."""
    addresses: tuple[str, ...] = ()
    """Networks (`10.0.0.0/8`) that it may be used from; empty: from anywhere."""
    version: int = 1
    """Grows with each change; its ETag."""
    rotated_to: str | None = None
    """The key that a rotation made in this one's stead: this one has only its overlap left."""

    def __post_init__(self) -> None:
        for network in self.addresses:
            parse_network(network)


def _checksum(body: str) -> str:
    value = binascii.crc32(body.encode())
    return "".join(_ALPHABET[value // len(_ALPHABET) ** i % len(_ALPHABET)] for i in range(_CHECKSUM_CHARS))


def new_key() -> str:
    """A fresh key, ≥ 160 random bits. It is shown once and never stored."""
    body = "".join(secrets.choice(_ALPHABET) for _ in range(_RANDOM_CHARS))
    return f"{_PREFIX}{body}{_checksum(body)}"


def is_well_formed(key: str) -> bool:
    """Whether `key` can be one of ours: prefix, length, alphabet and checksum."""
    if not key.startswith(_PREFIX) or len(key) != len(_PREFIX) + _RANDOM_CHARS + _CHECKSUM_CHARS:
        return False
    body, checksum = key[len(_PREFIX) : -_CHECKSUM_CHARS], key[-_CHECKSUM_CHARS:]
    return all(c in _ALPHABET for c in body) and checksum == _checksum(body)


def new_key_id() -> str:
    return f"key_{secrets.token_hex(8)}"


def hash_key(secret: bytes, key: str) -> KeyHash:
    """Keyed hash under which a key is stored and looked up; useless without the server's secret."""
    return KeyHash(hmac.digest(secret, b"headrace api key\0" + key.encode(), "sha256").hex())
