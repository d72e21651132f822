"""`headrace load`: puts a closed loop of requests on an OpenAI-compatible server and measures it."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from loadtest.closed_loop import ClosedLoop
    from loadtest.record import Run
    from loadtest.slo import Slo

_DEFAULT_REQUESTS = 100
_TERMINAL_REFRESH_S = 0.5
_LOG_REFRESH_S = 5.0


class Options(NamedTuple):
    """The checked command line."""

    url: str
    key: str | None
    tenant: str
    model: str | None
    concurrency: int
    requests: int | None
    duration: float | None
    prompt_tokens: int
    output_tokens: int
    vocab_size: int
    chat: bool
    stream: bool
    ignore_eos: bool
    seed: int
    timeout: float
    slo: Slo


@click.command(context_settings={"show_default": True})
@click.argument("url")
@click.option("--concurrency", type=click.IntRange(1, 4096), default=8, help="Requests at once.")
@click.option("--requests", type=click.IntRange(1), help=f"How many in all.  [default: {_DEFAULT_REQUESTS}]")
@click.option(
    "--duration", type=click.FloatRange(0, min_open=True), help="Or: begin requests for so many seconds."
)
@click.option(
    "--prompt-tokens", type=click.IntRange(1), default=128, help="Exact for --completions; words for --chat."
)
@click.option("--output-tokens", type=click.IntRange(1), default=64, help="Most tokens of an answer.")
@click.option(
    "--ignore-eos/--stop-at-eos", default=True, help="Answers of exactly --output-tokens, or as they come."
)
@click.option("--model", help="Model to ask for; default: the first of /v1/models.")
@click.option("--key", envvar="HEADRACE_API_KEY", show_envvar=True, show_default=False, help="API key.")
@click.option("--key-file", type=click.Path(path_type=Path), help="File with the API key; goes before --key.")
@click.option(
    "--completions/--chat", "completions", default=True, help="Token-id prompts, or one user message."
)
@click.option("--stream/--no-stream", default=True, help="Without streaming only E2E latency is known.")
@click.option(
    "--vocab-size", type=click.IntRange(101), default=256, help="Token ids of prompts are below it."
)
@click.option("--seed", type=int, default=0, help="Prompts follow from it; a repeated seed meets the cache.")
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), default=600.0, help="Seconds for one answer."
)
@click.option("--slo", help="What goodput counts, as ttft_ms=1000,tpot_ms=100 (or e2e_ms=…).")
@click.option("--json", "as_json", is_flag=True, help="One JSON object as the last line of stdout.")
def load(as_json: bool, **given: Any) -> None:
    """Measure the server at URL (http://host:port) with a closed loop.

    Exit status: 0 all answered in full, 1 any was not, 2 could not run. Ctrl-C
    prints what there is; what it cut off is not held against the server.

    Example: headrace load http://127.0.0.1:8000 --key-file .headrace/demo.key
    """
    from rich.console import Console

    from loadtest.client import CannotRun
    from loadtest.report import print_summary
    from loadtest.summary import summarize

    options = _check(**given)
    try:
        run = asyncio.run(_run(options))
    except CannotRun as error:
        click.echo(f"headrace load: {error}", err=True)
        sys.exit(2)
    summary = summarize(run, options.slo)
    print_summary(summary, Console())
    if as_json:
        click.echo(json.dumps(summary))
    sys.exit(1 if summary["errors"] or summary["rejected"] else 0)


def _check(
    *, slo: str | None, key: str | None, key_file: Path | None, completions: bool, **given: Any
) -> Options:
    """Raises click's usage errors, which exit with 2; none quotes the key."""
    if given["requests"] is not None and given["duration"] is not None:
        raise click.UsageError("--requests and --duration exclude each other")
    if given["duration"] is None and given["requests"] is None:
        given["requests"] = _DEFAULT_REQUESTS
    _check_url(given["url"])
    return Options(
        key=_key(key, key_file),
        tenant=key_file.stem if key_file else "default",
        chat=not completions,
        slo=_slo(slo, given["stream"]),
        **given,
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
        try:
            key = key_file.read_text()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise click.BadParameter(
                f"{key_file} cannot be read: {reason}", param_hint="--key-file"
            ) from None
    if key is None:
        return None
    if not key.strip() or not all("!" <= character <= "~" for character in key.strip()):
        raise click.UsageError("the key is empty or holds characters that no key has")
    return key.strip()


def _slo(text: str | None, is_streamed: bool) -> Slo:
    from loadtest.slo import Slo, parse_slo

    if text is None:
        return Slo(ttft_ms=1000, tpot_ms=100) if is_streamed else Slo(e2e_ms=10_000)
    try:
        slo = parse_slo(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--slo") from None
    if not is_streamed and (slo.ttft_ms or slo.tpot_ms):
        raise click.BadParameter("without streaming only e2e_ms is known", param_hint="--slo")
    return slo


async def _run(options: Options) -> Run:
    from loadtest.client import Ask, CannotRun, LoadClient, list_models, open_http
    from loadtest.closed_loop import ClosedLoop
    from loadtest.prompts import text_prompt, token_prompt

    async with open_http(options.url, options.key, options.concurrency) as http:
        models = await list_models(http)
        if not (options.model or models):
            raise CannotRun("the server names no model: give one with --model")
        ask = Ask(
            model=options.model or models[0],
            endpoint="chat" if options.chat else "completions",
            output_tokens=options.output_tokens,
            is_streamed=options.stream,
            ignore_eos=options.ignore_eos,
            tenant=options.tenant,
        )
        client = LoadClient(http, ask, time.perf_counter, options.timeout)

        async def send(number: int, intended_at: float) -> Any:
            prompt: list[int] | str
            if options.chat:
                prompt = text_prompt(options.seed, number, options.prompt_tokens)
            else:
                prompt = token_prompt(options.seed, number, options.prompt_tokens, options.vocab_size)
            return await client.send(prompt, intended_at)

        loop = ClosedLoop(
            send,
            time.perf_counter,
            concurrency=options.concurrency,
            num_requests=options.requests,
            duration_s=options.duration,
        )
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, loop.interrupt)
        return await _watched(loop)


async def _watched(loop: ClosedLoop) -> Run:
    """Runs it, with a progress line on stderr."""
    showing = asyncio.create_task(_show_progress(loop))
    try:
        return await loop.run()
    finally:
        showing.cancel()
        with suppress(asyncio.CancelledError):
            await showing


async def _show_progress(loop: ClosedLoop) -> None:
    from loadtest.report import progress_line

    is_terminal = sys.stderr.isatty()
    try:
        while True:
            await asyncio.sleep(_TERMINAL_REFRESH_S if is_terminal else _LOG_REFRESH_S)
            click.echo(
                f"\r{progress_line(loop)}\x1b[K" if is_terminal else progress_line(loop),
                err=True,
                nl=not is_terminal,
            )
    finally:
        if is_terminal:
            click.echo("\r\x1b[K", err=True, nl=False)
