"""What a start says when it is done: the address, the keys' files and a line to paste."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from rich.console import Console

from cluster.settings import ServeSettings
from tenants.bootstrap import KeyFiles


def front_address(host: str, port: int) -> str:
    """A URL of the front port that works on this machine, whatever it is bound to."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def greet(console: Console, settings: ServeSettings, served_name: str, keys: KeyFiles) -> None:
    """`keys` has None where a key was deleted through the API: then there is no line to paste."""
    address = front_address(settings.host, settings.port)
    lines = [
        "",
        f"Serving {served_name} at {address}",
        f"Key: {keys.demo or 'deleted'}   admin key: {keys.admin or 'deleted'}",
        "",
        *([] if keys.demo is None else [_curl(address, served_name, keys.demo), ""]),
        "Ctrl-C drains and stops; a second one stops at once.",
    ]
    console.print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)


def _curl(address: str, served_name: str, key: Path) -> str:
    """Bounded and greedy, so that it answers within a second or two."""
    messages = [{"role": "user", "content": "Say hello."}]
    body = json.dumps({"model": served_name, "messages": messages, "max_tokens": 64, "temperature": 0})
    return (
        f'  curl {address}/v1/chat/completions -H "Authorization: Bearer $(cat {shlex.quote(str(key))})" \\\n'
        f'    -H "Content-Type: application/json" -d {shlex.quote(body)}'
    )
