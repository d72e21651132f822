"""All that needs exact tokens, through Ray, two gateways and three replicas, on a tape."""

from __future__ import annotations

import json
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

from tests.e2e.conftest import LONG, NUM_GATEWAYS, NUM_REPLICAS, TAPES
from tests.e2e.served import Served

JSON = {"Content-Type": "application/json"}


def text_of(name: str) -> str:
    return bytes(TAPES[name]).decode(errors="replace")


def stream_text(
    client: openai.OpenAI, prompt: str, **fields: object
) -> tuple[str, list[openai.types.Completion]]:
    chunks = list(client.completions.create(model="tape", prompt=prompt, stream=True, **fields))  # type: ignore[call-overload]
    return "".join(chunk.choices[0].text for chunk in chunks if chunk.choices), chunks


class TestAnswers:
    def test_the_openai_client_reads_a_chat(self, tape_cluster: Served) -> None:
        answer = tape_cluster.openai().chat.completions.create(
            model="tape", messages=[{"role": "user", "content": "Hello"}]
        )
        assert answer.choices[0].message.content == "Any other prompt."
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len("Any other prompt.") + 1

    def test_a_stream_says_the_same_as_no_stream(self, tape_cluster: Served) -> None:
        client = tape_cluster.openai()
        whole = client.completions.create(model="tape", prompt="flag", max_tokens=200)
        text, chunks = stream_text(client, "flag", max_tokens=200, stream_options={"include_usage": True})
        assert text == whole.choices[0].text == text_of("flag")
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert whole.usage is not None
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert all(chunk.usage is None for chunk in chunks[:-1])
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason]
        assert reasons == ["stop"]

    def test_a_stop_string_over_token_borders_is_never_sent(self, tape_cluster: Served) -> None:
        client = tape_cluster.openai()
        whole = client.completions.create(model="tape", prompt="stop", stop=["DEFGHIJ"], max_tokens=50)
        text, _ = stream_text(client, "stop", stop=["DEFGHIJ"], max_tokens=50)
        assert text == whole.choices[0].text == "ABC"
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == len("ABCDEFGHIJ")

    def test_held_back_text_is_flushed_when_no_stop_comes(self, tape_cluster: Served) -> None:
        text, _ = stream_text(tape_cluster.openai(), "stop", stop=["JKL"], max_tokens=50)
        assert text == "ABCDEFGHIJK"

    def test_a_cut_inside_a_character_is_flushed_once(self, tape_cluster: Served) -> None:
        client = tape_cluster.openai()
        whole = client.completions.create(model="tape", prompt="cut", max_tokens=2)
        text, _ = stream_text(client, "cut", max_tokens=2)
        assert text == whole.choices[0].text == b"\xed\x95".decode(errors="replace")
        assert whole.choices[0].finish_reason == "length"

    def test_a_repeated_prompt_is_served_from_the_cache(self, tape_cluster: Served) -> None:
        client = tape_cluster.openai()
        prompt = "The same long beginning of a prompt, again and again. " * 4
        cached = []
        for _ in range(4):  # two replicas: one of them sees the prompt twice
            usage = client.completions.create(model="tape", prompt=prompt, max_tokens=1).usage
            assert usage is not None
            assert usage.prompt_tokens_details is not None
            cached.append(usage.prompt_tokens_details.cached_tokens)
        assert max(cached) == (len(prompt) - 1) // 16 * 16  # type: ignore[type-var]
        assert cached[0] == 0

    def test_two_tenants_share_no_block(self, tape_cluster: Served) -> None:
        prompt = "What one tenant sends tells another nothing. " * 4
        with tape_cluster.http(tape_cluster.admin_key) as admin:
            admin.post("/admin/v1/tenants", json={"tenant_id": "other", "tier": "free"}).raise_for_status()
            key = admin.post("/admin/v1/keys", json={"tenant_id": "other"}).json()["key"]
        for _ in range(4):
            tape_cluster.openai().completions.create(model="tape", prompt=prompt, max_tokens=1)
        body = {"model": "tape", "prompt": prompt, "max_tokens": 1}
        with tape_cluster.http(key) as other:
            usage = other.post("/v1/completions", json=body).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0


class TestLoad:
    def test_16_streams_at_once_complete_and_leave_nothing(self, tape_cluster: Served) -> None:
        client = tape_cluster.openai()
        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda _: stream_text(client, LONG, max_tokens=300)[0], range(16)))
        assert texts == [text_of(LONG)[:300]] * 16
        tape_cluster.wait_until_idle(within_s=2)

    def test_all_gateways_and_replicas_take_part(self, tape_cluster: Served) -> None:
        targets = tape_cluster.members("gateway").values()
        gateways = [target["labels"]["direct_address"] for target in targets]
        assert len(gateways) == NUM_GATEWAYS
        seen = set()
        with tape_cluster.http() as client:
            for address in gateways:
                for number in range(16):
                    body = {"model": "tape", "prompt": f"{address} {number}", "max_tokens": 1}
                    answer = client.post(f"http://{address}/v1/completions", json=body)
                    assert answer.status_code == 200
                    seen.add(answer.headers["x-headrace-replica"])
        assert len(seen) == NUM_REPLICAS


class TestLeaving:
    """A client that leaves frees its blocks within a second, in either mode and any state."""

    def test_in_the_middle_of_a_stream(self, tape_cluster: Served) -> None:
        body = {"model": "tape", "prompt": LONG, "max_tokens": 2000, "stream": True}
        with tape_cluster.http() as client, client.stream("POST", "/v1/completions", json=body) as answer:
            next(answer.iter_lines())
        tape_cluster.wait_until_idle(within_s=1)

    def test_before_a_whole_answer(self, tape_cluster: Served) -> None:
        body = {"model": "tape", "prompt": LONG, "max_tokens": 2000}
        with tape_cluster.http() as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/completions", json=body, timeout=0.3)
        tape_cluster.wait_until_idle(within_s=1)

    def test_while_waiting_for_a_seat(self, tape_cluster: Served) -> None:
        """More requests than the three replicas' 96 seats; all leave at once."""
        body = {"model": "tape", "prompt": LONG, "max_tokens": 2000}

        with tape_cluster.http() as client, ThreadPoolExecutor(112) as pool:

            def ask(_: int) -> None:
                with pytest.raises(httpx.ReadTimeout):
                    client.post("/v1/completions", json=body, timeout=1.5)

            list(pool.map(ask, range(112)))
        tape_cluster.wait_until_idle(within_s=1)


class TestKeys:
    @pytest.mark.parametrize(
        "header", [{}, {"Authorization": "Bearer hr-nonsense"}, {"Authorization": "Basic x"}]
    )
    def test_no_key_or_a_bad_one_is_401(self, tape_cluster: Served, header: dict[str, str]) -> None:
        answer = httpx.get(f"{tape_cluster.url}/v1/models", headers=header)
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"

    def test_a_deleted_key_is_dead_on_all_gateways_within_a_second(self, tape_cluster: Served) -> None:
        with tape_cluster.http(tape_cluster.admin_key) as admin:
            admin.post(
                "/admin/v1/tenants", json={"tenant_id": "short-lived", "tier": "paid"}
            ).raise_for_status()
            made = admin.post("/admin/v1/keys", json={"tenant_id": "short-lived"}).json()
            with tape_cluster.http(made["key"]) as tenant:
                assert {tenant.get("/v1/models").status_code for _ in range(10)} == {200}
                path = f"/admin/v1/keys/{made['key_id']}"
                assert admin.delete(path).status_code == 204
                deadline = time.monotonic() + 1
                while 200 in {tenant.get("/v1/models").status_code for _ in range(6)}:
                    assert time.monotonic() < deadline

    def test_an_inference_key_is_no_admin(self, tape_cluster: Served) -> None:
        with tape_cluster.http() as client:
            assert client.get("/admin/v1/tenants").status_code == 403


class TestRequestIds:
    @pytest.mark.parametrize("asked", ["mine", "bad id é", None])
    def test_an_answer_has_one_and_never_an_unprintable_one(
        self, tape_cluster: Served, asked: str | None
    ) -> None:
        headers = {} if asked is None else {"x-request-id": asked.encode()}
        with tape_cluster.http() as client:
            (shown,) = client.get("/health", headers=headers).headers.get_list("x-request-id")
        assert shown == asked if asked == "mine" else len(shown) == 32


class TestHostile:
    """A hostile body is a 400, and the engine answers the next request as before."""

    @pytest.mark.parametrize(
        "body",
        [
            b'{"model":"tape","prompt":""}',
            b'{"model":"tape","prompt":[]}',
            b'{"model":"tape","prompt":[""]}',
            b'{"model":"tape","prompt":[[]]}',
            b'{"model":"tape","prompt":"x","temperature":NaN}',
            b'{"model":"tape","prompt":"x","max_tokens":1e999}',
            b'{"model":"tape","prompt":"x","max_tokens":' + b"9" * 5000 + b"}",
            b'{"model":"tape","prompt":"x","model":"tape"}',
            b'{"model":"tape","prompt":"\\ud800"}',
            b'{"model":"tape","prompt":"\xff"}',
            b'{"model":"tape","prompt":"x","metadata":' + b"[" * 1000 + b"]" * 1000 + b"}",
            b'{"model":"tape","prompt":"x","n":true}',
            b'{"model":"tape","prompt":"x","stream":"yes"}',
            b'{"model":"tape","prompt":"x","frequency_penalty":3}',
            b'{"model":"tape","prompt":"x","nonsense":1}',
        ],
    )
    def test_a_bad_body_is_400_and_harms_nobody(self, tape_cluster: Served, body: bytes) -> None:
        with tape_cluster.http() as client:
            begun = time.monotonic()
            answer = client.post(
                "/v1/completions", content=body, headers={"Content-Type": "application/json"}
            )
            assert time.monotonic() - begun < 1
            assert answer.status_code == 400
            assert json.loads(answer.text)["error"]["type"] == "invalid_request_error"
            good = {"model": "tape", "prompt": "stop", "max_tokens": 3}
            assert client.post("/v1/completions", json=good).json()["choices"][0]["text"] == "ABC"


def test_the_printed_curl_line_works_as_pasted(tape_cluster: Served) -> None:
    begin = tape_cluster.output.index("curl ")
    line = tape_cluster.output[begin : tape_cluster.output.index("\n\nCtrl-C")]
    answer = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=30, check=True)
    assert json.loads(answer.stdout)["choices"][0]["message"]["content"] == "Any other prompt."


def test_metrics_need_a_key_and_show_the_replicas(tape_cluster: Served) -> None:
    assert httpx.get(f"{tape_cluster.url}/metrics").status_code == 401
    with tape_cluster.http(tape_cluster.admin_key) as admin:
        text = admin.get("/metrics").text
    assert text.count("headrace_kv_cache_usage_ratio{") == NUM_REPLICAS
    assert "headrace_time_to_first_token_seconds_bucket" in text
