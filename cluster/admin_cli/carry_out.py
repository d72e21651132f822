"""A plan, step by step, until its end or the first step that fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cluster.admin_cli.actions import Action
from cluster.admin_cli.client import AdminClient
from cluster.admin_cli.failures import CannotRun, RefusedByServer

_STALE = 412


@dataclass
class ApplyResult:
    """How far it came. Steps behind `num_done` and the failed one were not begun."""

    num_done: int = 0
    failure: RefusedByServer | CannotRun | KeyboardInterrupt | None = None
    made: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Index of a step that made a key → what the API told of it, with the key."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the step that failed may have been done: its answer never came."""
        return self.failure is not None and not isinstance(self.failure, RefusedByServer)

    def state_of(self, index: int) -> str:
        if index < self.num_done:
            return "done"
        if self.failure is None or index > self.num_done:
            return "not_done"
        return "in_doubt" if self.is_in_doubt else "failed"


def carry_out(
    client: AdminClient,
    actions: tuple[Action, ...],
    on_done: Callable[[Action, dict[str, Any]], None],
) -> ApplyResult:
    """`on_done` hears of each step at once, and of a new key before anything else is done."""
    outcome = ApplyResult()
    for index, action in enumerate(actions):
        try:
            told = _do(client, action)
        except (RefusedByServer, CannotRun) as error:
            outcome.failure = _of_step(action, error)
            break
        except KeyboardInterrupt as error:
            outcome.failure = error
            break
        outcome.num_done += 1
        if "key" in told:
            outcome.made[index] = told
        on_done(action, told)
    return outcome


def _do(client: AdminClient, action: Action) -> dict[str, Any]:
    path = f"/{action.kind}s"
    if action.verb == "create":
        return client.create(path, action.body)
    if action.verb == "update":
        return client.patch(f"{path}/{action.target}", action.body, version=action.version)
    client.delete(f"{path}/{action.target}", version=action.version)
    return {}


def _of_step(action: Action, error: RefusedByServer | CannotRun) -> RefusedByServer | CannotRun:
    line = f"{action.verb} {action.kind} {action.label}: {error}"
    if isinstance(error, CannotRun):
        return CannotRun(line)
    if error.status == _STALE:
        line += " Run it again for a new plan."
    return RefusedByServer(error.status, line)
