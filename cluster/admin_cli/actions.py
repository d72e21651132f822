"""What a plan is made of. Values only."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Verb = Literal["create", "update", "delete"]
Kind = Literal["tier", "tenant", "key"]

ABSENT = msgspec.UNSET
"""Before or after a change: the field is not there."""


class Change(msgspec.Struct, frozen=True):
    field: str
    before: Any
    after: Any


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the API."""

    verb: Verb
    kind: Kind
    label: str
    """As people know it; a key is `tenant/name`."""
    target: str
    """Its id; of a key that is to be made: empty."""
    changes: tuple[Change, ...] = ()
    body: dict[str, Any] = {}
    version: int | None = None
    """Which one this was planned from."""


class Kept(msgspec.Struct, frozen=True):
    """What `prune` would delete and must not."""

    kind: Kind
    label: str
    why: str


class Note(msgspec.Struct, frozen=True):
    """What the file says of a thing that is there, and no step brings about."""

    kind: Kind
    label: str
    target: str
    text: str


class Plan(msgspec.Struct, frozen=True):
    actions: tuple[Action, ...]
    num_unchanged: int
    kept: tuple[Kept, ...] = ()
    notes: tuple[Note, ...] = ()
