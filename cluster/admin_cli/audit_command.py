"""`headrace audit`: who changed what."""

from __future__ import annotations

from typing import Any

import click

from cluster.admin_cli.session import Session, asks_the_cluster


@click.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@click.option(
    "--before", metavar="ENTRY", help="Older than this entry: the page after the one that ended there."
)
@asks_the_cluster
def audit(session: Session, limit: int, before: str | None) -> None:
    """Changes of tiers, tenants, keys and budgets, the latest first.

    Example: headrace audit --limit 20
    """
    told = session.client.get("/audit", limit=limit, before=before)
    session.show(told, lambda: _print(told))


def _print(told: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import moment, print_rows

    rows = [
        (moment(entry["at"]), _actor(entry), entry["action"], entry["target"], _told(entry))
        for entry in told["data"]
    ]
    print_rows(("when", "by", "did", "to", "change"), rows)
    if told["has_more"]:
        click.echo(f"There is more: --before {told['next_before']}")


def _actor(entry: dict[str, Any]) -> str:
    return "/".join(part for part in (entry["actor"]["tenant_id"], entry["actor"]["key_id"]) if part)


def _told(entry: dict[str, Any]) -> str:
    return "" if entry["action"].endswith(".delete") else _changes(entry["changes"])


def _changes(changes: dict[str, list[Any]]) -> str:
    """What was not there before stands alone."""
    from cluster.admin_cli.tables import shown_field

    return "; ".join(
        f"{field}: {shown_field(field, after)}"
        if before is None
        else f"{field}: {shown_field(field, before)} → {shown_field(field, after)}"
        for field, (before, after) in changes.items()
    )
