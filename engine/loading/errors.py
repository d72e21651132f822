"""What a user is told when a model cannot be served."""

from __future__ import annotations


class ModelError(Exception):
    """A model that cannot be served: `message` says what is wrong, `remedy` what to do about it.

    Each is one printable line, whatever a file put into it.
    """

    def __init__(self, message: str, remedy: str) -> None:
        self.message = _printable_line(message)
        self.remedy = _printable_line(remedy)
        super().__init__(f"{self.message}: {self.remedy}")


def shown(value: object) -> str:
    """A value in few words, whatever the file holds."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _printable_line(text: str) -> str:
    words = " ".join(text.split())
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in words)
