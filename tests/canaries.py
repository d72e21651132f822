"""Words that must show up nowhere, and how to look for them."""

from __future__ import annotations

from base64 import b64encode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis


def forms(secret: str) -> set[bytes]:
    """How a secret may be written: as it is, as token ids of bytes, in hex, in base64 at any place.

    Give it ten letters or more, or its forms are found by chance.
    """
    data = secret.encode()
    listed = ", ".join(map(str, data))
    encoded = {_inside(encode, data, pad) for pad in range(3) for encode in (b64encode, urlsafe_b64encode)}
    return {data, listed.encode(), listed.replace(" ", "").encode(), data.hex().encode(), *encoded}


def _inside(encode: Callable[[bytes], bytes], data: bytes, pad: int) -> bytes:
    """The characters that `data` alone decides, `pad` bytes behind the begin of three."""
    return encode(b"\0" * pad + data)[-(-pad * 4 // 3) : (pad + len(data)) * 4 // 3]


def found(secrets: Iterable[str], text: bytes) -> list[str]:
    """Those of `secrets` that are in `text`, in any form."""
    return [secret for secret in secrets if any(form in text for form in forms(secret))]


def found_in_files(secrets: Iterable[str], folder: Path, known: Iterable[Path] = ()) -> list[str]:
    """`secret in path` for each of them that is in a file below `folder`, but for the `known` files.

    Links are not followed: give the folder that they lead to.
    """
    wanted = {secret: forms(secret) for secret in secrets}
    skipped = {path.resolve() for path in known}
    hits = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.is_symlink() or path.resolve() in skipped:
            continue
        data = path.read_bytes()
        hits += [
            f"{secret} in {path}" for secret, written in wanted.items() if any(w in data for w in written)
        ]
    return hits


async def all_of_redis(client: Redis) -> bytes:
    """Every key and every value, of whatever type."""
    lines: list[bytes] = []
    async for key in client.scan_iter():
        kind = (await client.type(key)).decode()
        lines += [key, repr(await _READ[kind](client, key)).encode(), await client.dump(key) or b""]
    return b"\n".join(lines)


_READ: dict[str, Callable[[Redis, bytes], Awaitable[Any]]] = {
    "string": lambda client, key: client.get(key),
    "hash": lambda client, key: cast(Awaitable[Any], client.hgetall(key)),
    "list": lambda client, key: cast(Awaitable[Any], client.lrange(key, 0, -1)),
    "set": lambda client, key: cast(Awaitable[Any], client.smembers(key)),
    "zset": lambda client, key: client.zrange(key, 0, -1, withscores=True),
    "stream": lambda client, key: client.xrange(key),
}
