"""`headrace key …`: what tenants identify themselves with. A key is shown once, when it is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click

from cluster.admin_cli.durations import DURATION, Duration
from cluster.admin_cli.session import ID, Session, asks_the_cluster
from cluster.admin_cli.terms_text import assignments, merged, read_terms

_SCOPES = ("inference", "metrics", "admin", "admin:read")
NEVER = "never"
NO_ADDRESS = "none"


class _Life(Duration):
    """Seconds, or `NEVER`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return NEVER if value == NEVER else super().convert(value, param, ctx)


def _key_options(command: Callable[..., None]) -> Callable[..., None]:
    """What can be said of a key when it is made and later."""
    for option in (
        click.option(
            "--limit",
            "limits",
            multiple=True,
            metavar="FIELD=VALUE",
            help="Of this key alone, beside its tenant's.",
        ),
        click.option(
            "--address",
            "addresses",
            multiple=True,
            metavar="CIDR",
            help="It may be used from there only; none: from anywhere.",
        ),
        click.option(
            "--expires-in", type=_Life(), metavar="TIME", help="From now on: 45s, 90m, 24h, 30d, 2w or never."
        ),
        click.option(
            "--scope",
            "scopes",
            multiple=True,
            type=click.Choice(_SCOPES),
            help="What it may do. metrics and admin:read see all tenants, admin changes them: for operators.",
        ),
        click.option("--name", help="For people, and for `headrace apply`, to know it by."),
    ):
        command = option(command)
    return command


@click.group()
def key() -> None:
    """Keys: who may do what, from where, until when.

    A key is shown once, when it is made, and never stored in the clear.

    Example: headrace key create --tenant acme --name ci --expires-in 90d
    """


@key.command("list")
@click.option("--tenant", type=ID, help="Of this tenant only.")
@asks_the_cluster
def list_(session: Session, tenant: str | None) -> None:
    """Keys by id, without the keys themselves.

    Example: headrace key list --tenant acme
    """
    keys = session.client.list_all("/keys", tenant_id=tenant)
    session.show({"object": "list", "data": keys}, lambda: _print_list(keys))


@key.command()
@click.argument("key_id", type=ID)
@asks_the_cluster
def get(session: Session, key_id: str) -> None:
    """One key, without the key itself.

    Example: headrace key get key_0123456789abcdef
    """
    _show(session, session.client.get(f"/keys/{key_id}"))


@key.command()
@click.option("--tenant", type=ID, required=True, help="Whose key.")
@_key_options
@asks_the_cluster
def create(
    session: Session,
    tenant: str,
    name: str | None,
    scopes: tuple[str, ...],
    expires_in: int | str | None,
    addresses: tuple[str, ...],
    limits: tuple[str, ...],
) -> None:
    """Make a key of scope inference, or of each --scope. Stdout has the key, and nothing else.

    \b
    Examples:
      headrace key create --tenant acme --expires-in 30d --limit requests_per_min=60
      headrace key create --tenant ops --scope metrics --address 10.0.0.0/8
    """
    body: dict[str, Any] = {"tenant_id": tenant, "limits": merged({}, _limits(limits)) or None}
    body |= _given(name, scopes, expires_in, addresses)
    _show_new(session, session.client.create("/keys", body))


@key.command("set")
@click.argument("key_id", type=ID)
@_key_options
@asks_the_cluster
def set_(
    session: Session,
    key_id: str,
    name: str | None,
    scopes: tuple[str, ...],
    expires_in: int | str | None,
    addresses: tuple[str, ...],
    limits: tuple[str, ...],
) -> None:
    """Change a key. Scopes and addresses are replaced as a whole; of limits, those that are said.

    A key that is changed with itself gets no expiry, and loses neither scope admin nor its own address.

    Example: headrace key set key_0123456789abcdef --limit requests_per_min=none --address none
    """
    given, asked = _given(name, scopes, expires_in, addresses), _limits(limits)
    if not given and not asked:
        raise click.UsageError("say what shall change")

    def patch(there: dict[str, Any]) -> dict[str, Any]:
        return {**given, "limits": merged(there["limits"] or {}, asked) or None} if asked else given

    _show(session, session.client.change(f"/keys/{key_id}", patch))


@key.command()
@click.argument("key_id", type=ID)
@click.option(
    "--overlap", type=DURATION, default="24h", show_default=True, help="The old key works for so long."
)
@asks_the_cluster
def rotate(session: Session, key_id: str, overlap: int) -> None:
    """Make a new key like the old one, KEY_ID, and let the old one end after the overlap.

    Stdout has the new key, and nothing else; stderr says when each of them ends. An old key that was rotated
    before is refused: rotate the key that took its place.

    Example: headrace key rotate key_0123456789abcdef --overlap 24h
    """
    made = session.client.create(f"/keys/{key_id}/rotate", {"overlap_s": overlap})
    _show_new(session, made)
    click.echo(
        f"The new key ends: {_end(made['expires_at'])}. "
        f"The old one, {made['old_key_id']}, ends: {_end(made['old_expires_at'])}.",
        err=True,
    )


@key.command()
@click.argument("key_id", type=ID)
@asks_the_cluster
def delete(session: Session, key_id: str) -> None:
    """End a key, everywhere within a second.

    Example: headrace key delete key_0123456789abcdef
    """
    session.client.delete(f"/keys/{key_id}")
    session.deleted("key", key_id)


def _limits(pairs: tuple[str, ...]) -> dict[str, Any]:
    from tenants.terms import Limits

    return read_terms(assignments(pairs), Limits)


def _given(
    name: str | None, scopes: tuple[str, ...], expires_in: int | str | None, addresses: tuple[str, ...]
) -> dict[str, Any]:
    body: dict[str, Any] = {}
    if name is not None:
        body["name"] = name
    if scopes:
        body["scopes"] = list(scopes)
    if expires_in is not None:
        body["expires_in_s"] = None if expires_in == NEVER else expires_in
    if addresses:
        body["addresses"] = [] if addresses == (NO_ADDRESS,) else list(addresses)
    return body


def _show_new(session: Session, made: dict[str, Any]) -> None:
    click.echo(json.dumps(made) if session.as_json else made["key"])
    click.echo(
        f"{made['key_id']} of tenant {made['tenant_id']}: its key is shown this once; keep it now.", err=True
    )


def _show(session: Session, key: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import print_fields

    fields = {name: value for name, value in key.items() if name not in ("object", "version")}
    told = {**fields, "limits": _limits_told(key), "expires_at": _end(key["expires_at"])}
    session.show(key, lambda: print_fields(told))


def _end(expires_at: float | None) -> str:
    from cluster.admin_cli.tables import moment

    return NEVER if expires_at is None else moment(expires_at)


def _limits_told(key: dict[str, Any]) -> dict[str, Any]:
    return {field: value for field, value in (key["limits"] or {}).items() if value is not None}


def _print_list(keys: list[dict[str, Any]]) -> None:
    from cluster.admin_cli.tables import print_rows

    rows = [
        (
            key["key_id"],
            key["tenant_id"],
            key["name"],
            key["scopes"],
            f"…{key['hint']}",
            _end(key["expires_at"]),
            _limits_told(key),
            key["addresses"],
        )
        for key in keys
    ]
    print_rows(("key", "tenant", "name", "scopes", "hint", "expires", "limits", "from"), rows)
