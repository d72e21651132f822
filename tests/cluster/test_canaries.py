"""Prompts, outputs and keys are in no log, no metric, no error and nowhere in Redis, whatever is asked."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from tenants.api_key import hash_key, new_key
from tenants.auth import Authenticator
from tenants.store_redis import RedisTenantStore
from tests.builders_tenants import seed
from tests.canaries import all_of_redis, found
from tests.cluster.fakes import SECRET, WALL_TIME, FakeGateway, say
from tests.cluster.in_process import in_process, tape

PROMPT, OUTPUT, STOP, USER = "canary-prompt-51", "canary-output-52", "canary-stop-53", "canary-user-54"
IDEMPOTENCY, STRANGE = "canary-idempotency-55", "canary-header-56"
WORDS = [PROMPT, OUTPUT, STOP, USER, IDEMPOTENCY, STRANGE]
PLACES = ("logs", "metrics", "errors", "Redis")
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
GOOD_TEXT: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "stop": [STOP], "user": USER}
GOOD_CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}]}

Ask = dict[str, Any]
"""Arguments of one call of the client."""


def text(**fields: Any) -> Ask:
    return {"method": "POST", "url": TEXT, "json": GOOD_TEXT | fields}


def chat(**fields: Any) -> Ask:
    return {"method": "POST", "url": CHAT, "json": GOOD_CHAT | fields}


def raw(body: str, **headers: str) -> Ask:
    sent = {"content-type": "application/json", **headers}
    return {"method": "POST", "url": CHAT, "content": body, "headers": sent}


GOOD: list[Ask] = [
    text(),
    text(stream=True, n=2),
    text(logprobs=2),
    chat(stream=True, stream_options={"include_usage": True}),
    chat(logprobs=True, top_logprobs=1, metadata={"a": USER}),
    text() | {"headers": {"idempotency-key": IDEMPOTENCY, "x-request-id": "mine", "cookie": STRANGE}},
]
BAD: list[Ask] = [
    text(prompt={"text": PROMPT}),
    text(prompt=[PROMPT, PROMPT]),
    text(prompt=PROMPT * 50),
    text(max_tokens=PROMPT),
    text(temperature=[PROMPT]),
    text(stop=[STOP] * 99),
    text(logit_bias={PROMPT: 1}),
    text(stream=PROMPT),
    text(user={"name": USER}),
    chat(messages=PROMPT),
    chat(messages=[PROMPT]),
    chat(messages=[{"role": PROMPT, "content": "x"}]),
    chat(messages=[{"role": "user", "content": {"text": PROMPT}}]),
    chat(messages=[{"role": "user", "content": [{"type": PROMPT, "text": PROMPT}]}]),
    chat(response_format={"type": PROMPT}),
    chat(tools=[{"type": "function", "function": {"name": PROMPT}}]),
    raw(f'{{"messages": "{PROMPT}'),
    raw(f"[{PROMPT}]"),
    raw(f'"{PROMPT}"'),
    raw(PROMPT, **{"content-encoding": STRANGE}),
    raw("{}", **{"content-type": f"text/plain; {STRANGE}"}),
    raw("{}", **{"x-request-timeout": STRANGE}),
    raw("{}", **{"x-headrace-class": STRANGE}),
    raw("{}", **{"idempotency-key": f"{IDEMPOTENCY} with blanks in it"}),
]


class Look:
    """A gateway on a real Redis, and all that it has said."""

    def __init__(self, gateway: FakeGateway, redis: Redis, logs: pytest.LogCaptureFixture) -> None:
        self._gateway = gateway
        self._redis = redis
        self._logs = logs
        self._errors: list[bytes] = []
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(gateway.app, raise_app_exceptions=False), base_url="http://gateway"
        )

    async def ask(
        self, ask: Ask, key: str | None = None, *, is_path_told_back: bool = False
    ) -> httpx.Response:
        """Who has a key is told, and nobody else, which path there is not."""
        headers = {"authorization": f"Bearer {key}"} if key else {}
        answer = await self._http.request(**ask | {"headers": headers | ask.get("headers", {})})
        if answer.status_code >= 400 and not is_path_told_back:
            self._errors += [answer.content, repr(answer.headers.raw).encode()]
        return answer

    async def found(self, secrets: list[str]) -> dict[str, list[str]]:
        places = {
            "logs": self._logs.text.encode(),
            "metrics": self._gateway.telemetry.render(),
            "errors": b"\n".join(self._errors),
            "Redis": await all_of_redis(self._redis),
        }
        return {place: hits for place, text in places.items() if (hits := found(secrets, text))}


@pytest.fixture
async def gateway(redis: Redis) -> FakeGateway:
    store = RedisTenantStore(redis)
    await seed(store)
    gateway = FakeGateway(store=store, authenticator=Authenticator(store, SECRET, lambda: WALL_TIME))
    gateway.store = store  # type: ignore[assignment]
    gateway.generator.script = say("It says ", OUTPUT)
    return await gateway.open()


@pytest.fixture
async def look(gateway: FakeGateway, redis: Redis, caplog: pytest.LogCaptureFixture) -> Look:
    caplog.set_level(logging.WARNING, "httpx")  # the client's own
    caplog.set_level(logging.DEBUG)  # last: it is what the handler takes, too
    return Look(gateway, redis, caplog)


async def test_the_look_sees_every_place(gateway: FakeGateway, redis: Redis, look: Look) -> None:
    logging.getLogger("headrace.api").debug("a prompt: %s", PROMPT)
    gateway.telemetry.count_request(200, PROMPT)
    await redis.set("key", PROMPT)
    await look.ask({"method": "GET", "url": f"/{PROMPT}"}, gateway.keys["inference"])
    assert await look.found(WORDS) == {place: [PROMPT] for place in PLACES}


async def test_what_was_asked_and_answered_is_nowhere_but_in_the_answer(
    gateway: FakeGateway, look: Look
) -> None:
    key = gateway.keys["inference"]
    for ask in GOOD:
        answer = await look.ask(ask, key)
        assert answer.status_code == 200, answer.text
        assert OUTPUT in answer.text
    assert gateway.generator.last.stop == (STOP,)
    assert await look.found([*WORDS, key]) == {}


@pytest.mark.parametrize("ask", BAD, ids=range(len(BAD)))
async def test_what_is_refused_is_not_quoted(gateway: FakeGateway, look: Look, ask: Ask) -> None:
    answer = await look.ask(ask, gateway.keys["inference"])
    assert 400 <= answer.status_code < 500, answer.text
    assert await look.found([*WORDS, *gateway.keys.values()]) == {}


async def test_an_error_that_nobody_foresaw_is_not_quoted(gateway: FakeGateway, look: Look) -> None:
    gateway.generator.before = [RuntimeError(f"while computing {PROMPT}")]
    assert (await look.ask(text(), gateway.keys["inference"])).status_code == 500
    gateway.generator.before = []
    gateway.generator.script = [*say("It says ", OUTPUT)[:1], ValueError(f"behind {OUTPUT}")]
    assert (await look.ask(text(stream=True), gateway.keys["inference"])).status_code == 200
    assert await look.found(WORDS) == {}


async def test_keys_are_nowhere_wherever_a_client_puts_them(gateway: FakeGateway, look: Look) -> None:
    good, unknown = gateway.keys["inference"], new_key()
    mistyped = good[:-1] + ("a" if good[-1] != "a" else "b")
    for key in (good, unknown, mistyped, f"sk-{STRANGE}"):
        for headers in (
            {"authorization": f"Bearer {key}"},
            {"authorization": f"Basic {key}"},
            {"authorization": key},
            {"x-api-key": key},
            {"api-key": key},
            {"cookie": f"key={key}"},
        ):
            await look.ask(text() | {"headers": headers})
        for url in (f"{TEXT}?api_key={key}", f"/{key}", f"/v1/chat/{key}", f"{CHAT}#{key}"):
            await look.ask({"method": "POST", "url": url, "json": GOOD_TEXT})
            await look.ask({"method": "GET", "url": url}, good, is_path_told_back=True)
    assert await look.found([unknown, mistyped, *gateway.keys.values(), STRANGE, *WORDS]) == {}


async def test_no_hash_of_a_key_is_in_a_log_a_metric_or_an_error(gateway: FakeGateway, look: Look) -> None:
    hashes = [hash_key(SECRET, key) for key in gateway.keys.values()]
    for key in (*gateway.keys.values(), new_key()):
        for path in ("tiers", "tenants", "keys", "audit", "tenants/acme", "keys/nobody"):
            answer = await look.ask({"method": "GET", "url": f"/admin/v1/{path}"}, key)
            assert found(hashes, answer.content) == []
    places = await look.found(hashes)
    assert places.keys() == {"Redis"}, "where they are looked up"


async def test_the_engine_and_the_links_say_nothing_of_tokens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with in_process([tape({"*": OUTPUT.encode()})]) as gateway:
        key = gateway.keys["inference"]
        answer = await gateway.post(TEXT, {"model": "tiny", "prompt": PROMPT, "max_tokens": 40})
        assert OUTPUT in answer.json()["choices"][0]["text"]
        gateway.executor.errors = {(0, 3): "not_finite"}
        assert (await gateway.post(TEXT, {"model": "tiny", "prompt": PROMPT + "!"})).status >= 500
        gateway.executor.errors = {}
        said = caplog.text.encode() + gateway.telemetry.render()
    assert found([PROMPT, OUTPUT, key], said) == []
