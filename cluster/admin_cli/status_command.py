"""`headrace status`: replicas by state with their ETA, demand, capacity, headroom, cold start."""

from __future__ import annotations

import time
from typing import Any

import click

from cluster.admin_cli.session import Session, asks_the_cluster

WATCH_EVERY_S = 2.0


@click.command()
@click.option("--watch", is_flag=True, help=f"Again every {WATCH_EVERY_S:g} s, until Ctrl-C.")
@asks_the_cluster
def status(session: Session, watch: bool) -> None:
    """How the cluster stands: which replicas serve, start or leave, and why there are so many.

    Rates are in tokens of service: an uncached input token counts 1, a cached one 0.1, an output token 1.

    \b
    Examples:
      headrace status
      headrace status --watch --json
    """
    while True:
        told = session.client.get("/status")
        session.show(told, lambda told=told: _print(told))  # type: ignore[misc]
        if not watch:
            return
        time.sleep(WATCH_EVERY_S)


def _print(told: dict[str, Any]) -> None:
    from cluster.admin_cli.tables import print_fields, print_rows

    print_rows(
        ["replica", "state", "stage", "serves in"],
        [
            [one["replica_id"] or "-", one["state"], one["stage"] or "-", _seconds(one["eta_s"])]
            for one in told["replicas"]
        ],
    )
    fields = {
        "model": told["model"],
        "replicas": f"{told['target']} of {told['min_replicas']} to {told['max_replicas']}: {told['reason']}",
        "demand": _demand(told["demand"]),
        "capacity": "{tokens_per_s:.0f} tokens/s, {tokens_per_s_per_replica:.0f} a replica".format(
            **told["capacity"]
        ),
        "headroom": _headroom(told["headroom"]),
        "cold start": _cold_start(told["cold_start"]),
    }
    print_fields(fields | ({"trouble": told["trouble"]} if told["trouble"] else {}))


def _demand(told: dict[str, Any] | None) -> str:
    if told is None:
        return "unknown: no gateway tells any"
    return (
        "{offered_tokens_per_s:.0f} tokens/s, of it {shed_tokens_per_s:.0f} shed; "
        "{expected_tokens_per_s:.0f} expected; {backlog_tokens} tokens wait"
    ).format(**told)


def _headroom(told: dict[str, Any]) -> str:
    actual = "no demand" if told["actual"] is None else f"{told['actual']:.2f}"
    return f"{actual} (wanted: {told['wanted']:g})"


def _cold_start(told: dict[str, Any]) -> str:
    stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in told["stages_s"].items())
    return f"{told['total_s']:.1f} s: {stages}"


def _seconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds:.0f} s"
