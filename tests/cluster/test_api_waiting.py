"""What a client says of its waiting, and what it is told: its class, its return, when to come back."""

from __future__ import annotations

import pytest

from cluster.api.errors import turned_away
from cluster.waiting_metrics import CODES
from tests.cluster.fakes import Call, FakeGateway

TEXT = "/v1/completions"


async def ask(gateway: FakeGateway, *, stream: bool = False, **headers: str) -> Call:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 50, "stream": stream}
    return await gateway.post(TEXT, body, headers=names)


class TestTheClass:
    async def test_is_the_tenants_own_unless_it_says_otherwise(self, gateway: FakeGateway) -> None:
        for header, service_class in ((None, "interactive"), ("interactive",) * 2, ("batch",) * 2):
            await ask(gateway, **({} if header is None else {"x_headrace_class": header}))
            assert gateway.generator.last.service_class == service_class

    async def test_of_a_batch_tenant_is_never_above_that(self) -> None:
        gateway = await FakeGateway(overrides={"service_class": "batch"}).open()
        for header in ({}, {"x_headrace_class": "batch"}):
            assert (await ask(gateway, **header)).status == 200
            assert gateway.generator.last.service_class == "batch"
        call = await ask(gateway, x_headrace_class="interactive")
        assert (call.status, call.error["param"]) == (400, "x-headrace-class")
        assert "must be 'batch'" in call.error["message"]

    @pytest.mark.parametrize("value", ["", "Batch", "batch,interactive", "urgent", "0"])
    async def test_that_is_none_is_refused_and_the_header_named(
        self, gateway: FakeGateway, value: str
    ) -> None:
        call = await ask(gateway, x_headrace_class=value)
        assert (call.status, call.error["param"]) == (400, "x-headrace-class")
        assert "'interactive' or 'batch'" in call.error["message"]
        assert gateway.generator.requests == []


class TestAReturn:
    @pytest.mark.parametrize(
        ("header", "is_return"),
        [("0", False), ("00", False), ("1", True), ("2", True), ("", False), ("-1", False), ("x", False)],
    )
    async def test_is_what_openai_s_clients_call_a_retry(
        self, gateway: FakeGateway, header: str, is_return: bool
    ) -> None:
        assert (await ask(gateway, x_stainless_retry_count=header)).status == 200
        assert gateway.generator.last.is_return is is_return

    async def test_is_not_assumed(self, gateway: FakeGateway) -> None:
        await ask(gateway)
        assert not gateway.generator.last.is_return


class TestARefusal:
    @pytest.mark.parametrize("stream", [True, False])
    @pytest.mark.parametrize(
        ("status", "code", "type_"),
        [(503, "overloaded", "server_error"), (429, "queue_full", "rate_limit_error")],
    )
    async def test_says_when_to_come_back(
        self, gateway: FakeGateway, status: int, code: str, type_: str, stream: bool
    ) -> None:
        gateway.generator.before = [turned_away(status, code, 7)]
        call = await ask(gateway, stream=stream)
        assert (call.status, call.error["code"], call.error["type"]) == (status, code, type_)
        assert call.headers["retry-after"] == "7"

    async def test_that_coming_back_does_not_help_names_no_time(self, gateway: FakeGateway) -> None:
        gateway.generator.before = [turned_away(503, "deadline_exceeded", None)]
        call = await ask(gateway)
        assert (call.status, call.error["code"]) == (503, "deadline_exceeded")
        assert "retry-after" not in call.headers

    def test_has_words_of_its_own_for_each_code(self) -> None:
        assert len({turned_away(503, code, None).message for code in CODES}) == len(CODES)


@pytest.mark.parametrize("stream", [True, False])
async def test_an_answer_that_was_shortened_lest_others_be_turned_away_says_so(
    gateway: FakeGateway, stream: bool
) -> None:
    gateway.generator.max_tokens = 20
    call = await ask(gateway, stream=stream)
    assert (call.status, call.headers["x-headrace-max-tokens"]) == (200, "20")
