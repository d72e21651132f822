"""The stages of a start, with their times: what people see while a cluster comes up."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from cluster.output import waiting_for


class StartError(Exception):
    """A start that failed: the stage, what is wrong, and what to do about it."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy


class Stages:
    """Prints one line a stage; `current` is the one that a failure belongs to. `clock` is monotonic, in s."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console = console
        self._clock = clock
        self._started = clock()
        self.current = "environment"

    @contextmanager
    def stage(self, name: str) -> Iterator[Callable[[str], None]]:
        """Times a stage; the yielded function sets the detail shown beside it."""
        begun = self._clock()
        details: list[str] = []
        with self.waiting(name):
            yield details.append
        self.done(name, self._clock() - begun, "; ".join(details))

    @contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Shows that a stage is under way; its time is told by `done`."""
        self.current = name
        with waiting_for(self._console, name):
            yield

    def done(self, name: str, seconds: float, detail: str = "") -> None:
        self._console.print(f"  {name:<12}{seconds:6.1f} s   {detail}", highlight=False, soft_wrap=True)

    @property
    def elapsed_s(self) -> float:
        return self._clock() - self._started
