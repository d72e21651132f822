"""One request over real HTTP: what is asked, what is recorded, and every way it can end."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from loadtest.client import LoadClient, LoadRequest, NothingToLoad, list_models, open_http
from loadtest.record import RequestRecord
from loadtest.workload import Prompt
from tests.builders_tenants import FakeClock
from tests.loadtest.fake_api import FakeApi, Reply, fake_api, streamed

ASK = LoadRequest(model="tiny", endpoint="completions", tenant="demo")
KEY = "hr-secret"


class TickingClock(FakeClock):
    """One second later at every look."""

    def __call__(self) -> float:
        self.advance(1.0)
        return self.now


async def send(
    url: str, ask: LoadRequest = ASK, prompt: list[int] | str = "x", timeout_s: float = 30.0
) -> RequestRecord:
    async with open_http(url, KEY, concurrency=1) as http:
        client = LoadClient(http, ask, TickingClock(now=100.0), timeout_s)
        return await client.send(Prompt(prompt, 2), intended_at=100.0)


@contextmanager
def answering(reply: Reply) -> Iterator[FakeApi]:
    with fake_api(lambda body: reply) as api:
        yield api


async def test_a_streamed_completion_is_asked_for_and_recorded() -> None:
    with answering(streamed(["a", "b"], prompt_tokens=3, cached_tokens=2)) as api:
        record = await send(api.url, prompt=[7, 8, 9])
    assert (record.tenant, record.status, record.intended_at) == ("demo", "ok", 100.0)
    assert (record.prompt_tokens, record.output_tokens, record.cached_tokens) == (3, 2, 2)
    assert len(record.token_times) == 2
    assert 101.0 <= record.token_times[0] <= record.token_times[1] < record.finished_at
    path, headers, body = api.asked[0]
    assert (path, headers["authorization"]) == ("/v1/completions", "Bearer hr-secret")
    assert headers["content-type"] == "application/json"
    assert body == {
        "model": "tiny",
        "prompt": [7, 8, 9],
        "max_tokens": 2,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


async def test_when_it_was_sent_and_who_answered_is_recorded() -> None:
    with answering(streamed(["a", "b"])._replace(replica="replica-1")) as api:
        record = await send(api.url)
    assert (record.replica, record.sent_at, record.send_lag_s) == ("replica-1", 101.0, 1.0)
    with answering(Reply((b"{}",), 503)) as api:
        assert (await send(api.url)).replica == ""


async def test_a_chat_that_is_not_streamed_is_asked_for_and_recorded() -> None:
    whole = (
        b'{"choices":[{"message":{"content":"ab"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    )
    ask = ASK._replace(endpoint="chat", is_streamed=False, ignore_eos=False)
    with answering(Reply((whole,))) as api:
        record = await send(f"{api.url}/v1/", ask, prompt="hello")
    assert (record.status, record.output_tokens, record.token_times) == ("ok", 1, ())
    path, _, body = api.asked[0]
    assert path == "/v1/chat/completions"
    assert body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 2,
        "temperature": 0,
    }


async def test_events_may_come_in_any_pieces() -> None:
    whole = b"".join(streamed(["a", "b"]).pieces)
    with answering(Reply(tuple(whole[at : at + 7] for at in range(0, len(whole), 7)))) as api:
        assert (await send(api.url)).status == "ok"


@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_a_refusal_is_recorded_by_its_status(status: int) -> None:
    with answering(Reply((b"{}",), status)) as api:
        record = await send(api.url)
    assert (record.status, record.token_times) == (str(status), ())
    assert record.is_rejected is (status in (429, 503))


async def test_the_reason_of_a_refusal_is_kept_short_and_without_the_key() -> None:
    said = b'{"error":{"code":"bad","message":"hr-secret may not. ' + b"x" * 174 + b'hr-secret"}}'
    with answering(Reply((said,), 401)) as api:
        record = await send(api.url)
    assert record.status == "401"
    assert record.reason.startswith("… may not. x")
    assert record.reason.endswith("x…")
    said = said.replace(b"x", b"xx")
    with answering(Reply((said,), 401)) as api:
        assert len((await send(api.url)).reason) == 200


async def test_a_broken_stream_is_cut_off() -> None:
    with answering(streamed(["a", "b"])._replace(pieces=streamed(["a", "b"]).pieces[:1], is_cut=True)) as api:
        record = await send(api.url)
    assert (record.status, len(record.token_times)) == ("cut off", 1)


async def test_a_stream_that_ends_too_early_is_cut_off() -> None:
    with answering(Reply(streamed(["a", "b"]).pieces[:2])) as api:
        assert (await send(api.url)).status == "cut off"


async def test_a_server_that_says_nothing_runs_into_the_timeout() -> None:
    with answering(Reply((), hangs=True)) as api:
        assert (await send(api.url, timeout_s=0.05)).status == "timeout"


async def test_nobody_there_is_recorded_as_such() -> None:
    with answering(Reply(())) as api:
        url = api.url
    assert (await send(url)).status == "no connection"


async def test_a_proxy_of_the_environment_is_not_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with answering(streamed(["a", "b"])) as api:
        assert (await send(api.url)).status == "ok"


async def models_at(url: str) -> list[str]:
    async with open_http(url, KEY, concurrency=1) as http:
        return await list_models(http)


async def test_the_servers_models_are_asked_for_with_the_key() -> None:
    with answering(Reply(())) as api:
        assert await models_at(api.url) == ["tiny"]
    assert api.asked[0][1]["authorization"] == "Bearer hr-secret"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (Reply((b"{}",), 401), r"refuses the key \(401\): give one with --key-file"),
        (Reply((b"{}",), 403), r"refuses the key \(403\)"),
        (Reply((b"<html>",), 200), r"does not speak the OpenAI API: /v1/models is no list \(200\)"),
        (Reply((b'{"error":{}}',), 500), r"does not speak .* is no list \(500\)"),
    ],
)
async def test_a_server_that_cannot_be_loaded_is_one_line(reply: Reply, message: str) -> None:
    with (
        fake_api(lambda body: reply, models=reply) as api,
        pytest.raises(NothingToLoad, match=rf"^127\.0\.0\.1:\d+ {message}") as caught,
    ):
        await models_at(api.url)
    assert KEY not in str(caught.value)


async def test_no_server_is_one_line() -> None:
    with answering(Reply(())) as api:
        url = api.url
    with pytest.raises(NothingToLoad, match=r"nothing answers at 127\.0\.0\.1:\d+ \(ConnectError\)"):
        await models_at(url)
