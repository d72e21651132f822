"""Limits, budgets and administration as tenants and operators meet them: two gateways, one record."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.e2e.conftest import ENDLESS, LONG
from tests.e2e.served import Served, answered, open_http, until

WITHIN_S = 1.0
"""Every change is in force on all gateways."""
PRICE = 1_000_000
"""A micro-unit a token."""


class Shop:
    """A tenant of its own, its key, and an operator, on both gateways in turn."""

    def __init__(self, served: Served, overrides: dict[str, Any]) -> None:
        self.served = served
        self.tenant_id = f"t-{uuid4().hex[:12]}"
        self.operator = served.http(served.admin_key)
        self.administer("POST", "tenants", tenant_id=self.tenant_id, tier="unlimited", overrides=overrides)
        self.key = self.administer("POST", "keys", tenant_id=self.tenant_id)["key"]
        self._client = open_http(key=self.key)
        gateways = served.members("gateway").values()
        self.urls = [f"http://{target['labels']['direct_address']}" for target in gateways]
        self._in_turn = cycle(self.urls)

    def close(self) -> None:
        self._client.close()
        self.operator.close()

    def administer(self, method: str, path: str, **fields: Any) -> dict[str, Any]:
        answer = answered(lambda: self.operator.request(method, f"/admin/v1/{path}", json=fields))
        changed: dict[str, Any] = answer.raise_for_status().json()
        return changed

    def change(self, **fields: Any) -> None:
        self.administer("PATCH", f"tenants/{self.tenant_id}", **fields)

    def ask(self, prompt: str = "x", max_tokens: int = 3, **fields: Any) -> httpx.Response:
        body = {"model": "tape", "prompt": prompt, "max_tokens": max_tokens} | fields
        url = f"{next(self._in_turn)}/v1/completions"
        return answered(lambda: self._client.post(url, json=body))

    def ask_all_at_once(self, count: int, **fields: Any) -> list[httpx.Response]:
        with ThreadPoolExecutor(32) as pool:
            return list(pool.map(lambda _: self.ask(**fields), range(count)))

    def usage(self) -> dict[str, int]:
        """Of today and the days around it, by day."""
        with self.served.http(self.key) as client:
            rows = client.get("/v1/usage").raise_for_status().json()["data"]
        total: Counter[str] = Counter()
        for row in rows:
            total.update({name: value for name, value in row.items() if isinstance(value, int)})
        return dict(total)


@pytest.fixture
def shop(tape_cluster: Served, request: pytest.FixtureRequest) -> Iterator[Shop]:
    shop = Shop(tape_cluster, getattr(request, "param", {}))
    yield shop
    shop.close()


def with_overrides(**overrides: Any) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("shop", [overrides], indirect=True, ids=["-".join(overrides)])


class TestRates:
    @with_overrides(requests_per_min=5)
    def test_exactly_as_many_pass_as_may_on_all_gateways_together(self, shop: Shop) -> None:
        answers = shop.ask_all_at_once(20)
        codes = Counter(answer.status_code for answer in answers)
        assert codes == {200: 5, 429: 15}
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(refused.headers["retry-after"]) <= 12
        assert refused.headers["x-ratelimit-limit-requests"] == "5"
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"

    @with_overrides(requests_per_min=1)
    def test_a_change_is_in_force_everywhere_within_a_second(self, shop: Shop) -> None:
        assert [shop.ask().status_code for _ in range(3)] == [200, 429, 429]
        shop.change(overrides={"requests_per_min": 100})
        until(lambda: {shop.ask().status_code for _ in shop.urls} == {200}, WITHIN_S)
        assert [shop.ask().status_code for _ in range(6)] == [200] * 6

    @with_overrides(input_tokens_per_min=10)
    def test_a_prompt_that_no_waiting_lets_in_is_400(self, shop: Shop) -> None:
        answer = shop.ask("x" * 11)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "limit_never_satisfiable")
        assert "retry-after" not in answer.headers

    @with_overrides(max_concurrency=2)
    def test_a_seat_is_free_again_once_its_request_has_ended(self, shop: Shop) -> None:
        codes = Counter(answer.status_code for answer in shop.ask_all_at_once(8, prompt=LONG, max_tokens=100))
        assert codes[200] >= 2
        assert set(codes) <= {200, 429}
        until(lambda: shop.ask().status_code == 200, WITHIN_S)

    @with_overrides(models=["another"])
    def test_a_model_that_is_not_the_tenant_s_is_404(self, shop: Shop) -> None:
        assert shop.ask().status_code == 404


class TestBudgets:
    @with_overrides(budget_day=190, input_price=PRICE, output_price=PRICE)
    def test_two_hundred_at_once_spend_what_is_there_and_not_more(self, shop: Shop) -> None:
        """Each one costs 3 for its prompt and at most 16."""
        answers = shop.ask_all_at_once(200, prompt="abc", max_tokens=16, ignore_eos=True)
        codes = Counter(answer.status_code for answer in answers)
        assert set(codes) <= {200, 402}
        assert codes[200] >= 10
        refused = next(answer for answer in answers if answer.status_code == 402)
        assert refused.json()["error"]["code"] == "insufficient_quota"
        assert "retry-after" not in refused.headers
        paid = sum(answer.json()["usage"]["total_tokens"] for answer in answers if answer.is_success)
        until(lambda: shop.usage().get("cost") == paid, WITHIN_S, shop.usage)
        assert paid <= 190

    @with_overrides(budget_day=40, input_price=PRICE, output_price=PRICE)
    def test_an_answer_is_as_long_as_the_rest_pays_for_and_a_top_up_pays_for_more(self, shop: Shop) -> None:
        answer = shop.ask(LONG, max_tokens=100)
        assert answer.headers["x-headrace-max-tokens"] == str(40 - len(LONG))
        assert answer.json()["usage"]["completion_tokens"] == 40 - len(LONG)
        until(lambda: shop.usage().get("cost") == 40, WITHIN_S, shop.usage)
        assert shop.ask(LONG).status_code == 402
        shop.administer("POST", f"limits/{shop.tenant_id}/top-up", amount=20, window="day")
        assert shop.ask(LONG).status_code == 200
        shop.administer("POST", f"limits/{shop.tenant_id}/reset", window="day")
        assert shop.ask(LONG, max_tokens=30).status_code == 200

    @with_overrides(input_price=PRICE, output_price=PRICE)
    def test_who_leaves_a_stream_pays_for_what_was_made(self, shop: Shop) -> None:
        body = {"model": "tape", "prompt": LONG, "max_tokens": 2000, "stream": True}
        with (
            shop.served.http(shop.key) as client,
            client.stream("POST", "/v1/completions", json=body) as answer,
        ):
            lines = answer.iter_lines()
            for _ in range(40):
                next(lines)
        shop.served.wait_until_idle(within_s=2)
        until(lambda: shop.usage().get("requests") == 1, WITHIN_S, shop.usage)
        used = shop.usage()
        assert 10 <= used["completion_tokens"] < 2000
        assert used["cost"] == used["prompt_tokens"] + used["completion_tokens"]


class TestFreezing:
    def test_a_frozen_tenant_s_running_work_ends_within_a_second(self, shop: Shop) -> None:
        body = {"model": "tape", "prompt": ENDLESS, "max_tokens": 6000, "stream": True}
        headers = {"Authorization": f"Bearer {shop.key}"}
        with ThreadPoolExecutor(4) as pool:

            def run(url: str) -> str:
                with httpx.stream(
                    "POST", f"{url}/v1/completions", json=body, headers=headers, timeout=60
                ) as answer:
                    return list(filter(None, answer.iter_lines()))[-1]

            running = [pool.submit(run, url) for url in shop.urls * 2]
            until(lambda: shop.served.engine_gauges()["headrace_engine_requests_running"] >= 4)
            shop.change(disabled=True)
            frozen_at = time.monotonic()
            ends = [one.result() for one in running]
            took_s = time.monotonic() - frozen_at
        assert took_s < WITHIN_S
        assert all("tenant_disabled" in end for end in ends)
        until(lambda: {shop.ask().status_code for _ in range(4)} == {403}, WITHIN_S)
        shop.served.wait_until_idle(within_s=2)


class TestIdempotency:
    def test_a_repeat_on_another_gateway_is_the_same_answer_and_one_charge(self, shop: Shop) -> None:
        body = {"model": "tape", "prompt": "stop", "max_tokens": 5}
        headers = {"Authorization": f"Bearer {shop.key}", "Idempotency-Key": uuid4().hex}
        first, again = (httpx.post(f"{url}/v1/completions", json=body, headers=headers) for url in shop.urls)
        assert first.status_code == again.status_code == 200
        assert first.content == again.content
        assert again.headers["x-headrace-replayed"] == "true"
        until(lambda: shop.usage().get("requests") == 1, WITHIN_S, shop.usage)
        other = httpx.post(f"{shop.urls[0]}/v1/completions", json=body | {"max_tokens": 4}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
