"""`headrace tier …`: what tenants of a kind may do and pay."""

from __future__ import annotations

from typing import Any

import click

from cluster.admin_cli.session import ID, Session, asks_the_cluster
from cluster.admin_cli.terms_text import DEFAULT, assignments, merged, read_terms

_COLUMNS = {
    "weight": "weight",
    "service_class": "class",
    "requests_per_min": "requests/min",
    "input_tokens_per_min": "input/min",
    "output_tokens_per_min": "output/min",
    "max_concurrency": "at once",
    "budget_day": "budget/day",
    "budget_month": "budget/month",
    "input_price": "input price",
    "cached_input_price": "cached price",
    "output_price": "output price",
    "offline": "offline",
}


@click.group()
def tier() -> None:
    """Tiers: rates, budgets, prices, shares.

    Money is in micro-units (1 unit = 1000000); tables show both.

    Example: headrace tier set free requests_per_min=120 budget_day=5000000
    """


@tier.command("list")
@asks_the_cluster
def list_(session: Session) -> None:
    """All tiers, by name. Prices are micro-units per 10^6 tokens.

    Example: headrace tier list
    """
    tiers = session.client.list_all("/tiers")
    session.show({"object": "list", "data": tiers}, lambda: _print_list(tiers))


@tier.command()
@click.argument("name", type=ID)
@asks_the_cluster
def get(session: Session, name: str) -> None:
    """One tier with all its terms.

    Example: headrace tier get free
    """
    _show(session, session.client.get(f"/tiers/{name}"))


@tier.command()
@click.argument("name", type=ID)
@click.argument("terms", nargs=-1, metavar="[FIELD=VALUE]...")
@asks_the_cluster
def create(session: Session, name: str, terms: tuple[str, ...]) -> None:
    """Make a tier. What is not said has its default; `none` is no limit.

    Example: headrace tier create gold requests_per_min=6000 input_price=150000 output_price=600000
    """
    _show(session, session.client.create("/tiers", {"name": name, "terms": merged({}, _terms(terms))}))


@tier.command("set")
@click.argument("name", type=ID)
@click.argument("terms", nargs=-1, required=True, metavar="FIELD=VALUE...")
@asks_the_cluster
def set_(session: Session, name: str, terms: tuple[str, ...]) -> None:
    """Change terms; the others stay. `none` is no limit, `default` what a new tier has.

    Example: headrace tier set free requests_per_min=120 budget_day=none
    """
    from msgspec import to_builtins

    from tenants.terms import Terms

    plain = to_builtins(Terms())
    given = {field: plain[field] if value is DEFAULT else value for field, value in _terms(terms).items()}
    _show(session, session.client.patch(f"/tiers/{name}", {"terms": given}))


@tier.command()
@click.argument("name", type=ID)
@asks_the_cluster
def delete(session: Session, name: str) -> None:
    """Remove a tier that no tenant is of.

    Example: headrace tier delete gold
    """
    session.client.delete(f"/tiers/{name}")
    session.deleted("tier", name)


def _terms(pairs: tuple[str, ...]) -> dict[str, Any]:
    from tenants.terms import Terms

    return read_terms(assignments(pairs), Terms)


def _show(session: Session, tier: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import print_fields

    session.show(tier, lambda: print_fields({"name": tier["name"], **tier["terms"]}))


def _print_list(tiers: list[dict[str, Any]]) -> None:
    from cluster.admin_cli.tables import print_rows, shown_field

    rows = [
        [tier["name"], *(shown_field(field, tier["terms"][field]) for field in _COLUMNS)] for tier in tiers
    ]
    print_rows(["tier", *_COLUMNS.values()], rows)
