"""What keeps outcomes secret: keyed hashes for names, AES-256-GCM for what was said.

Each record has a key of its own, by HKDF (RFC 5869) from the root secret: far fewer outcomes are sealed
under one key than random 96-bit nonces allow (2^32, NIST SP 800-38D, 8.3). The whole mark is authenticated
with the outcome, so none can be put under another tenant, key or body.
"""

from __future__ import annotations

import hmac
import os

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tenants.outcomes.outcome import Mark, StoredOutcome
from tenants.store import CorruptRecord
from tenants.tenant import Tenant

_NONCE_BYTES = 12
_KEY_BYTES = 32


class Sealer:
    """`secret` is the root secret."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def mark(self, tenant: Tenant, route: str, key: str, body: bytes) -> Mark:
        """Neither `route` nor `key` holds a zero byte. A tenant made anew under an old id is another one."""
        whose = f"{tenant.tenant_id}\0{tenant.created_at}"
        key_hash = self._hash(b"key", whose.encode(), route.encode(), key.encode())
        body_hash = self._hash(b"body", key_hash.encode(), body)
        return Mark(tenant.tenant_id, key_hash, body_hash)

    def seal(self, mark: Mark, outcome: StoredOutcome) -> bytes:
        nonce = os.urandom(_NONCE_BYTES)
        said = msgspec.msgpack.encode(outcome)
        return nonce + self._cipher(mark).encrypt(nonce, said, _place(mark))

    def open(self, mark: Mark, sealed: bytes) -> StoredOutcome:
        """Raises `CorruptRecord` for what was not sealed for `mark` under this secret."""
        nonce, encrypted = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            said = self._cipher(mark).decrypt(nonce, encrypted, _place(mark))
            return msgspec.msgpack.decode(said, type=StoredOutcome)
        except (InvalidTag, ValueError):  # of msgspec's errors too
            raise CorruptRecord("an outcome was not sealed for its place with this root secret") from None

    def _hash(self, *parts: bytes) -> str:
        return hmac.digest(self._secret, b"\0".join((b"headrace idempotency", *parts)), "sha256").hex()

    def _cipher(self, mark: Mark) -> AESGCM:
        info = b"\0".join((b"headrace outcome", mark.tenant_id.encode(), mark.key_hash.encode()))
        return AESGCM(HKDF(SHA256(), _KEY_BYTES, salt=None, info=info).derive(self._secret))


def _place(mark: Mark) -> bytes:
    return b"\0".join(part.encode() for part in (mark.tenant_id, mark.key_hash, mark.body_hash))
