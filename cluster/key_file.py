"""An API key as a command of ours is given it. No complaint quotes it."""

from __future__ import annotations

from pathlib import Path

import click


def is_key(text: str) -> bool:
    """Whether a header can carry it."""
    return bool(text) and all("!" <= character <= "~" for character in text)


def read_key(path: Path) -> str:
    """What the file of `--key-file` holds. Raises click's usage error, which names that option."""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise click.BadParameter(f"{path} cannot be read: {reason}", param_hint="--key-file") from None
    if not is_key(key):
        raise click.BadParameter(f"{path} holds no key", param_hint="--key-file")
    return key
