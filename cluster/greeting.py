"""What a start says when it is done: the address, the keys' files and a line to paste."""

from __future__ import annotations

import json
import shlex

from rich.console import Console

from cluster.settings import ServeSettings


def front_address(host: str, port: int) -> str:
    """A URL of the front port that works on this machine, whatever it is bound to."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def greet(console: Console, settings: ServeSettings, served_name: str) -> None:
    address = front_address(settings.host, settings.port)
    body = json.dumps({"model": served_name, "messages": [{"role": "user", "content": "Say hello."}]})
    key = settings.state_dir / "demo.key"
    console.print(
        f"""
Serving {served_name} at {address}
Key: {key}   admin key: {settings.state_dir / "admin.key"}

  curl {address}/v1/chat/completions -H "Authorization: Bearer $(cat {shlex.quote(str(key))})" \\
    -H "Content-Type: application/json" -d {shlex.quote(body)}

Ctrl-C drains and stops; a second one stops at once.""",
        highlight=False,
        soft_wrap=True,
        markup=False,
    )
