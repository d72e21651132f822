"""`headrace bench gateway`: its options, and what people see of it."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

import click

from loadtest.figures_table import print_figures
from loadtest.gateway_bench.answers import MAX_OUTPUT_TOKENS
from loadtest.progress import ProgressLine

_MAX_STREAMS = 1024
_LABELS = {
    "tokens_per_s": "tokens/s, engines ahead",
    "events_per_s": "events/s of those",
    "event_per_token_tokens_per_s": "tokens/s, one event each",
    "event_per_token_share": "events / tokens there",
    "requests_per_s": "short requests/s",
    "added_p50_ms": "added to TTFT, p50 ms",
    "added_p99_ms": "added to TTFT, p99 ms",
    "added_itl_p50_ms": "added to ITL, p50 ms",
    "added_itl_p99_ms": "added to ITL, p99 ms",
    "per_request_stream_tokens_per_s": "tokens/s, one Ray stream a request",
    "uvicorn_tokens_per_s": "tokens/s, uvicorn alone",
    "ratio": "gateway / uvicorn",
    "client_cpu_share": "the client's share of a core",
}


@click.command(context_settings={"show_default": True})
@click.option("--streams", type=click.IntRange(1, _MAX_STREAMS), default=64, help="Answers at once.")
@click.option(
    "--output-tokens", type=click.IntRange(2, MAX_OUTPUT_TOKENS), default=256, help="Of each answer."
)
@click.option("--answers", type=click.IntRange(1), default=4, help="Of each stream, one after the other.")
@click.option("--replicas", type=click.IntRange(1, 256), default=2, help="Engines that play a tape.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def gateway(as_json: bool, streams: int, output_tokens: int, answers: int, replicas: int) -> None:
    """What a gateway can carry: clusters with tapes for engines, started and stopped here.

    Exit status: 0 held; 1 an answer was broken, or fewer than 10,000 tokens/s, 6,000 with one
    event each, or 300 short requests/s; 2 could not run. The bounds are for two cores.

    Example: headrace bench gateway --json
    """
    from loadtest.bench_setup import CannotBench
    from loadtest.gateway_bench.answers import BrokenAnswer
    from loadtest.gateway_bench.bench import GatewayBench, GatewayLoad
    from loadtest.gateway_bench.bounds import missed_bounds
    from loadtest.server_process import CannotStart

    load = GatewayLoad(streams=streams, output_tokens=output_tokens, answers_each=answers, replicas=replicas)
    try:
        figures = GatewayBench(load, ProgressLine(every_s=0).tell).run()
    except BrokenAnswer as error:
        _end(1, str(error))
    except (CannotBench, CannotStart) as error:
        _end(2, str(error))
    for line in missed_bounds(figures):
        click.echo(line, err=True)
    print_figures((label, f"{figures[key]:,}") for key, label in _LABELS.items())
    if as_json:
        click.echo(json.dumps(figures))
    sys.exit(0 if figures["held"] else 1)


def _end(status: int, reason: str) -> NoReturn:
    click.echo(f"headrace bench gateway: {reason}", err=True)
    sys.exit(status)
