"""A plan for people, field by field, and for programs."""

from __future__ import annotations

from typing import Any

import click

from cluster.admin_cli.actions import ABSENT, Action, Change, Plan
from cluster.admin_cli.carry_out import ApplyResult
from cluster.admin_cli.tables import shown, shown_field

_MARKS = {"create": "+", "update": "~", "delete": "-"}


def print_plan(plan: Plan) -> None:
    for action in plan.actions:
        click.echo(f"{_MARKS[action.verb]} {action.verb} {_named(action)}")
        for change in action.changes:
            if action.verb != "create" or change.after is not None:
                click.echo(f"    {change.field}: {_change(change)}")
    for kept in plan.kept:
        click.echo(f"= keep {kept.kind} {shown(kept.label)}: {kept.why}")
    for note in plan.notes:
        click.echo(f"! {note.kind} {shown(note.label)} ({note.target}): {note.text}")
    click.echo(_summary(plan))


def print_outcome(plan: Plan, outcome: ApplyResult) -> None:
    """To stderr: which steps were done, and which were not."""
    for index, action in enumerate(plan.actions):
        click.echo(f"{outcome.state_of(index).replace('_', ' ')}: {action.verb} {_named(action)}", err=True)


def plan_json(plan: Plan, state: str, outcome: ApplyResult | None, *, with_keys: bool) -> dict[str, Any]:
    return {
        "object": "apply",
        "state": state,
        "actions": [_action_json(plan, index, outcome, with_keys) for index in range(len(plan.actions))],
        "num_unchanged": plan.num_unchanged,
        "kept": [{"kind": kept.kind, "name": kept.label, "why": kept.why} for kept in plan.kept],
        "notes": [
            {"kind": note.kind, "name": note.label, "id": note.target, "note": note.text}
            for note in plan.notes
        ],
        "error": None if outcome is None or outcome.failure is None else str(outcome.failure) or "stopped",
    }


def _action_json(plan: Plan, index: int, outcome: ApplyResult | None, with_keys: bool) -> dict[str, Any]:
    action = plan.actions[index]
    told: dict[str, Any] = {
        "action": action.verb,
        "kind": action.kind,
        "name": action.label,
        "id": action.target or None,
        "changes": {change.field: _sides(change) for change in action.changes},
        "state": "planned" if outcome is None else outcome.state_of(index),
    }
    made = {} if outcome is None else outcome.made.get(index, {})
    if made:
        told["id"] = made["key_id"]
        if with_keys:
            told["key"] = made["key"]
    return told


def _sides(change: Change) -> dict[str, Any]:
    """A side on which the field is not there is left out."""
    sides = {"before": change.before, "after": change.after}
    return {side: value for side, value in sides.items() if value is not ABSENT}


def _named(action: Action) -> str:
    is_known_key = action.kind == "key" and action.target
    return f"{action.kind} {shown(action.label)}" + (f" ({action.target})" if is_known_key else "")


def _change(change: Change) -> str:
    before, after = (
        "unset" if side is ABSENT else shown_field(change.field, side)
        for side in (change.before, change.after)
    )
    return after if change.before is ABSENT and change.after is not ABSENT else f"{before} → {after}"


def _summary(plan: Plan) -> str:
    if not plan.actions:
        return f"Nothing to do: {plan.num_unchanged} unchanged."
    counts = [(verb, sum(action.verb == verb for action in plan.actions)) for verb in _MARKS]
    told = [f"{count} to {verb}" for verb, count in counts if count]
    return f"{', '.join(told)}, {plan.num_unchanged} unchanged."
