"""Why a command did not do what it was asked for: its exit status, and the line that says so."""

from __future__ import annotations


class RefusedByServer(Exception):
    """The server said no, in these words. Exit status 1."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class CannotRun(Exception):
    """Nobody to ask, or nothing that could be asked. Exit status 2."""
