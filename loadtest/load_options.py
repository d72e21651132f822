"""The command line of `headrace load`, checked: every complaint names its option."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
from click.core import ParameterSource

from cluster.key_file import is_key, read_key
from loadtest.client import Endpoint
from loadtest.shared_prefix import SharedPrefix
from loadtest.slo import Slo, parse_slo
from loadtest.traffic import DEFAULT_OUTPUT_TOKENS, Pace, Replay, Traffic, replayed, workload_traffic
from loadtest.workload import RandomPrompts, Workload

_MEANT_FOR = {
    "prompt_tokens": ("random",),
    "prefixes": ("shared-prefix",),
    "prefix_tokens": ("shared-prefix",),
    "suffix_tokens": ("shared-prefix",),
    "hot_share": ("shared-prefix",),
    "time_scale": ("trace",),
    "trace_tick_s": ("trace",),
    "workload": ("random", "shared-prefix"),
    "rate": ("random", "shared-prefix"),
    "duration": ("random", "shared-prefix"),
}
"""Options that say nothing beside other kinds of prompts: given there, they were a mistake."""


class Options(NamedTuple):
    """All that a run needs. `concurrency` None: the loop's default."""

    url: str
    key: str | None
    tenant: str
    model: str | None
    endpoint: Endpoint
    is_streamed: bool
    ignore_eos: bool
    timeout_s: float
    slo: Slo
    concurrency: int | None
    traffic: Traffic


def check(context: click.Context) -> Options:
    """Raises click's usage errors, which exit with 2; none quotes the key."""
    given: dict[str, Any] = dict(context.params)
    _check_url(given["url"])
    _check_combination(context, given)
    key_file: Path | None = given["key_file"]
    return Options(
        url=given["url"],
        key=_key(given["key"], key_file),
        tenant=key_file.stem if key_file else "default",
        model=given["model"],
        endpoint="completions" if given["completions"] else "chat",
        is_streamed=given["stream"],
        ignore_eos=given["ignore_eos"],
        timeout_s=given["timeout"],
        slo=_slo(given["slo"], given["stream"]),
        concurrency=given["concurrency"],
        traffic=_traffic(given),
    )


def _check_combination(context: click.Context, given: dict[str, Any]) -> None:
    if given["requests"] is not None and given["duration"] is not None:
        raise click.UsageError("--requests and --duration exclude each other")
    kind = "trace" if given["trace"] is not None else given["workload"]
    shown = "--trace" if kind == "trace" else f"--workload {kind}"
    for name, kinds in _MEANT_FOR.items():
        if kind not in kinds and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} has no meaning with {shown}")
    if kind != "random" and not given["completions"]:
        raise click.UsageError(f"{shown} sends token ids: it excludes --chat")
    if given["hot_share"] is not None and given["prefixes"] < 2:
        raise click.UsageError("--hot-share needs at least 2 --prefixes")


def _traffic(given: dict[str, Any]) -> Traffic:
    if given["trace"] is None:
        pace = Pace(given["seed"], given["rate"], given["requests"], given["duration"])
        return workload_traffic(_workload(given), pace)
    replay = Replay(
        file=given["trace"],
        seed=given["seed"],
        vocab_size=given["vocab_size"],
        num_requests=given["requests"],
        max_output_tokens=given["output_tokens"],
        tick_s=given["trace_tick_s"],
        time_scale=given["time_scale"],
    )
    try:
        return replayed(replay)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--trace") from None


def _workload(given: dict[str, Any]) -> Workload:
    output_tokens = given["output_tokens"] or DEFAULT_OUTPUT_TOKENS
    if given["workload"] == "random":
        return RandomPrompts(
            seed=given["seed"],
            num_tokens=given["prompt_tokens"],
            output_tokens=output_tokens,
            vocab_size=given["vocab_size"],
            is_text=not given["completions"],
        )
    return SharedPrefix(
        seed=given["seed"],
        num_prefixes=given["prefixes"],
        prefix_tokens=given["prefix_tokens"],
        suffix_tokens=given["suffix_tokens"],
        output_tokens=output_tokens,
        vocab_size=given["vocab_size"],
        hot_share=given["hot_share"],
    )


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise click.BadParameter("must be like http://127.0.0.1:8000", param_hint="URL")


def _key(key: str | None, key_file: Path | None) -> str | None:
    if key_file is not None:
        return read_key(key_file)
    if key is None:
        return None
    if not is_key(key.strip()):
        raise click.UsageError("the key is empty or holds characters that no key has")
    return key.strip()


def _slo(text: str | None, is_streamed: bool) -> Slo:
    if text is None:
        return Slo(ttft_ms=1000, tpot_ms=100) if is_streamed else Slo(e2e_ms=10_000)
    try:
        slo = parse_slo(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--slo") from None
    if not is_streamed and (slo.ttft_ms or slo.tpot_ms):
        raise click.BadParameter("without streaming only e2e_ms is known", param_hint="--slo")
    return slo
