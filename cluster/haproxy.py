"""Stands in for the HAProxy binary: mends the configuration that Ray writes, then becomes HAProxy.

Four faults are mended. Statistics and metrics are bound to every address; they belong on loopback.
`x-forwarded-for` is what a client says; it is to be where the client is, for keys may be bound to addresses.
And with `option splice-request` HAProxy does not see a client that leaves before the answer begins,
when its body came in a packet of its own (as from every Python client): generation would run to its end.
And what HAProxy answers itself, where a gateway has died or none is there, is a bare 500 in plain text;
it becomes what the gateways say then: 503, an error in OpenAI's shape, and when to come again.

Run as a script by Ray's proxy actor, the binary's path first; imports nothing of the project.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

_OPEN_BIND = re.compile(r"(?m)^((?:frontend prometheus|listen stats)\n\s*bind )\*?:(\d+)")
"""Of these two only: the front port is open to all where the operator asked for it."""
_SPLICE_REQUEST = re.compile(r"(?m)^\s*option splice-request\n")
_ERROR_FILE = re.compile(r"(?m)^(\s*errorfile 50[234]) .*$")
_UNAVAILABLE = (
    b'{"error":{"message":"The gateway that had this request is gone, or there is none.",'
    b'"type":"server_error","param":null,"code":"no_capacity"}}'
)
_FORWARDED = "http-request set-header x-forwarded-for %[src]"
_FRONT = re.compile(rf"(?m)^(frontend http_frontend\n(\s*)bind .*\n)(?!\s*{re.escape(_FORWARDED)})")


def mend(config: str, error_file: Path) -> str:
    """`error_file` is what it answers itself, head and body."""
    config = _OPEN_BIND.sub(r"\g<1>127.0.0.1:\2", config)
    config = _FRONT.sub(rf"\g<1>\g<2>{_FORWARDED}\n", config)
    config = _ERROR_FILE.sub(lambda found: f"{found[1]} {error_file}", config)
    return _SPLICE_REQUEST.sub("", config)


def unavailable() -> bytes:
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "content-type: application/json",
        f"content-length: {len(_UNAVAILABLE)}",
        "retry-after: 1",
        "cache-control: no-store",
        "connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + _UNAVAILABLE


def main(binary: str, *arguments: str) -> None:
    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        error_file = path.with_name("unavailable.http")
        error_file.write_bytes(unavailable())
        path.write_text(mend(path.read_text(), error_file))
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
