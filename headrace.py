"""The front door: one command line, composed lazily. Nothing else lives here.

A command's module is imported when it runs, so `headrace --help` needs neither torch nor ray.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any, NamedTuple

import click


class Entry(NamedTuple):
    """Where a command lives and the line that `--help` shows for it."""

    target: str
    summary: str


INTERRUPTED = 130
COMMANDS = {
    "serve": Entry("cluster.serve_command:serve", "Start a cluster, here or on a running Ray, and serve."),
    "ray-env": Entry("cluster.ray_env_command:ray_env", "Run `ray start` as headrace needs it."),
    "rollout": Entry(
        "cluster.rollout.command:rollout", "Replace the replicas of a running cluster by a new version."
    ),
    "status": Entry(
        "cluster.admin_cli.status_command:status", "Replicas by state, demand, capacity, cold start."
    ),
    "tier": Entry("cluster.admin_cli.tier_command:tier", "Tiers: rates, budgets, prices."),
    "tenant": Entry("cluster.admin_cli.tenant_command:tenant", "Tenants: who is served, on which terms."),
    "key": Entry("cluster.admin_cli.key_command:key", "Keys: make, change, rotate, end."),
    "limits": Entry(
        "cluster.admin_cli.limits_command:limits", "What a tenant may take and has left; top up."
    ),
    "usage": Entry("cluster.admin_cli.usage_command:usage", "What tenants used and what it cost."),
    "ledger": Entry(
        "cluster.ledger_cli.command:ledger", "The books: prove that everything agrees with them."
    ),
    "audit": Entry("cluster.admin_cli.audit_command:audit", "Who changed what."),
    "apply": Entry(
        "cluster.admin_cli.apply_command:apply", "Bring tiers, tenants and keys to what a file says."
    ),
    "bench": Entry("loadtest.bench_command:bench", "Measure one part alone, such as the engine."),
    "eval": Entry("engine.evaluation.command:evaluation", "What a choice costs a model's answers."),
    "kernels": Entry("kernels.commands.group:kernels", "The GPU kernels: proven, with a GPU or without."),
    "load": Entry("loadtest.load_command:load", "Measure a running server under load."),
    "scenario": Entry(
        "loadtest.scenario_command:scenario", "A load on a fleet in virtual time: does it keep its bounds?"
    ),
}


class LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, name = entry.target.split(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # click's own status for it is 1, which says that a bound was missed
            click.echo("stopped", err=True)
            sys.exit(INTERRUPTED)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry.summary) for name, entry in COMMANDS.items()])


def greedy_record(*asked: Any) -> Any:
    """A model's greedy tokens, for `headrace kernels`: that room may not import the engine, so what it asks
    of it is handed down with the command line."""
    return importlib.import_module("engine.greedy_record").greedy_record(*asked)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="headrace")
@click.pass_context
def main(context: click.Context) -> None:
    """A Ray-based, multi-tenant LLM serving cluster.

    Example: headrace serve --model smollm2
    """
    context.meta["greedy_record"] = greedy_record


if __name__ == "__main__":
    main()
