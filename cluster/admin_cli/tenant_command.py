"""`headrace tenant …`: who is served, and on which terms."""

from __future__ import annotations

from typing import Any

import click

from cluster.admin_cli.session import ID, Session, asks_the_cluster
from cluster.admin_cli.terms_text import assignments, merged, read_terms

_OWN = ("name", "tier")
"""Fields of the tenant itself; all others are terms, which override the tier's."""


@click.group()
def tenant() -> None:
    """Tenants: who is served, and how their terms differ from their tier's.

    Money is in micro-units (1 unit = 1000000); tables show both.

    A budget limits what is paid for: the built-in tiers have no prices, so give the tier some.

    Example: headrace tenant create acme tier=gold budget_day=250000000
    """


@tenant.command("list")
@asks_the_cluster
def list_(session: Session) -> None:
    """All tenants, by id.

    Example: headrace tenant list
    """
    tenants = session.client.list_all("/tenants")
    session.show({"object": "list", "data": tenants}, lambda: _print_list(tenants))


@tenant.command()
@click.argument("tenant_id", type=ID)
@asks_the_cluster
def get(session: Session, tenant_id: str) -> None:
    """One tenant. `headrace limits` shows the terms that hold for it.

    Example: headrace tenant get acme
    """
    _show(session, session.client.get(f"/tenants/{tenant_id}"))


@tenant.command()
@click.argument("tenant_id", type=ID)
@click.argument("fields", nargs=-1, required=True, metavar="tier=TIER [FIELD=VALUE]...")
@asks_the_cluster
def create(session: Session, tenant_id: str, fields: tuple[str, ...]) -> None:
    """Make a tenant. Besides tier= and name=, fields are terms that differ from the tier's.

    Example: headrace tenant create acme tier=paid "name=Acme Inc." requests_per_min=100
    """
    own, terms = _read(fields)
    if "tier" not in own:
        raise click.UsageError("a tenant needs tier=TIER")
    body = {"tenant_id": tenant_id, **own, "overrides": merged({}, terms)}
    _show(session, session.client.create("/tenants", body))


@tenant.command("set")
@click.argument("tenant_id", type=ID)
@click.argument("fields", nargs=-1, required=True, metavar="FIELD=VALUE...")
@asks_the_cluster
def set_(session: Session, tenant_id: str, fields: tuple[str, ...]) -> None:
    """Change name=, tier=, or terms; what is not said stays.

    `none` is no limit; `default` drops the override, so that the tier's own holds again.

    Example: headrace tenant set acme requests_per_min=100 budget_day=none weight=default
    """
    own, terms = _read(fields)

    def patch(there: dict[str, Any]) -> dict[str, Any]:
        return {**own, "overrides": merged(there["overrides"], terms)} if terms else own

    _show(session, session.client.change(f"/tenants/{tenant_id}", patch))


@tenant.command()
@click.argument("tenant_id", type=ID)
@asks_the_cluster
def delete(session: Session, tenant_id: str) -> None:
    """Remove a tenant and all its keys, and end what runs for it.

    An id is for ever: a tenant that is made with it again inherits usage, spend and top-ups. To end service
    for a while, use `headrace tenant freeze`.

    Example: headrace tenant delete acme
    """
    session.client.delete(f"/tenants/{tenant_id}")
    session.deleted("tenant", tenant_id)


@tenant.command()
@click.argument("tenant_id", type=ID)
@asks_the_cluster
def freeze(session: Session, tenant_id: str) -> None:
    """Refuse all its requests, everywhere within a second, and end what runs for it.

    Example: headrace tenant freeze acme
    """
    _show(session, session.client.patch(f"/tenants/{tenant_id}", {"disabled": True}))


@tenant.command()
@click.argument("tenant_id", type=ID)
@asks_the_cluster
def unfreeze(session: Session, tenant_id: str) -> None:
    """Serve a frozen tenant again.

    Example: headrace tenant unfreeze acme
    """
    _show(session, session.client.patch(f"/tenants/{tenant_id}", {"disabled": False}))


def _read(fields: tuple[str, ...]) -> tuple[dict[str, str], dict[str, Any]]:
    """The tenant's own fields, and terms."""
    from tenants.terms import Terms

    given = assignments(fields)
    own = {field: given.pop(field) for field in _OWN if field in given}
    return own, read_terms(given, Terms)


def _show(session: Session, tenant: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import print_fields

    session.show(tenant, lambda: print_fields(_fields(tenant)))


def _fields(tenant: dict[str, Any]) -> dict[str, Any]:
    return {
        "tenant": tenant["tenant_id"],
        "name": tenant["name"],
        "tier": tenant["tier"],
        "state": _state(tenant),
        "created_at": tenant["created_at"],
        "overrides": "" if tenant["overrides"] else "none",
        **{f"  {field}": _term(field, value) for field, value in tenant["overrides"].items()},
    }


def _term(field: str, value: Any) -> str:
    from cluster.admin_cli.tables import shown_field

    return shown_field(field, value)


def _state(tenant: dict[str, Any]) -> str:
    return "frozen" if tenant["disabled"] else "active"


def _print_list(tenants: list[dict[str, Any]]) -> None:
    from cluster.admin_cli.tables import moment, print_rows

    rows = [
        (
            tenant["tenant_id"],
            tenant["name"],
            tenant["tier"],
            _state(tenant),
            moment(tenant["created_at"]),
            tenant["overrides"],
        )
        for tenant in tenants
    ]
    print_rows(("tenant", "name", "tier", "state", "created", "overrides"), rows)
