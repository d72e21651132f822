"""What a user is told when a model cannot be served."""

from __future__ import annotations


class ModelError(Exception):
    """A model that cannot be served: `message` says what is wrong, `remedy` what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message}: {remedy}")
        self.message = message
        self.remedy = remedy
