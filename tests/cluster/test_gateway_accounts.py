"""What an engine tells its gateways beside their outputs: windows, and what others' requests got."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cluster.admission_windows import FLOOR, AdmissionWindows
from cluster.credit import Credit
from cluster.gateway_accounts import SERVED_TOLD_EVERY_S, GatewayAccounts, News
from cluster.served_elsewhere import FlowService
from engine.request import Request, RequestOutput
from tests.cluster.fake_replica import row
from tests.cluster.virtual_gateways import a_request

FULL, HALF = Credit(513, 41), Credit(257, 21)
LATER = SERVED_TOLD_EVERY_S


def of_acme(request_id: str, prompt_tokens: int = 100) -> Request:
    return a_request(request_id, prompt_tokens, 8, flow_id="acme")


def first(request_id: str, cached: int) -> RequestOutput:
    return replace(row(request_id, 0, 5), num_cached_tokens=cached)


@pytest.fixture
def accounts() -> GatewayAccounts:
    """Two gateways that have been told their windows."""
    accounts = GatewayAccounts(AdmissionWindows(256, 32, ramp_s=0.0))
    for gateway_id in ("x", "y"):
        accounts.open(gateway_id, 0.0)
    accounts.news((), 0.0)
    accounts.news((), 0.1)
    return accounts


def test_a_gateway_hears_of_its_window_when_it_has_come_and_when_it_changes() -> None:
    accounts = GatewayAccounts(AdmissionWindows(256, 32, ramp_s=0.0))
    accounts.open("x", 0.0)
    assert accounts.news((), 0.0) == {"x": News((), FULL)}
    assert accounts.news((), 0.5) == {}
    accounts.open("y", 1.0)
    assert accounts.news((), 1.0) == {"x": News((), HALF), "y": News((), FLOOR)}
    assert accounts.news((), 1.1) == {"y": News((), HALF)}
    assert (accounts.told("x"), accounts.told("z")) == (HALF, Credit(0, 0))


def test_outputs_go_to_their_gateway_with_its_window(accounts: GatewayAccounts) -> None:
    accounts.add("x", of_acme("r"))
    (told,) = accounts.news([row("r", 0, 5)], 0.11).items()
    assert told == ("x", News((row("r", 0, 5),), HALF))


def test_others_hear_what_a_tenant_got_in_tokens_of_service(accounts: GatewayAccounts) -> None:
    """100 tokens of input, 40 of them cached, and 3 of output: 60 + 4 + 3."""
    accounts.add("x", of_acme("r"))
    accounts.news([first("r", cached=40)], 0.11)
    accounts.news([row("r", 1, 6, 7)], 0.12)
    assert accounts.news((), 0.1 + LATER)["y"].served == (FlowService("acme", 67.0),)
    assert "y" not in accounts.news((), 0.1 + 2 * LATER)


def test_a_tenant_s_classes_are_told_apart(accounts: GatewayAccounts) -> None:
    accounts.add("x", of_acme("r"))
    accounts.add("x", replace(of_acme("b", prompt_tokens=9), priority=1))
    accounts.news([first("r", cached=0), first("b", cached=0)], 0.11)
    told = accounts.news((), 0.1 + LATER)["y"].served
    assert told == (FlowService("acme", 101.0), FlowService("acme", 10.0, priority=1))


def test_it_comes_with_the_next_message_if_that_is_sooner(accounts: GatewayAccounts) -> None:
    accounts.add("x", of_acme("r"))
    accounts.add("y", of_acme("s"))
    accounts.news([first("r", cached=0)], 0.11)
    assert accounts.news([row("s", 0, 5)], 0.12)["y"].served == (FlowService("acme", 101.0),)


def test_a_resumption_s_input_is_charged_to_nobody(accounts: GatewayAccounts) -> None:
    accounts.add("x", replace(of_acme("r"), output_token_ids=(1, 2)))
    accounts.news([first("r", cached=0)], 0.11)
    assert accounts.news((), 0.1 + LATER)["y"].served == (FlowService("acme", 1.0),)


def test_what_ended_before_its_prompt_was_computed_is_charged_to_nobody(accounts: GatewayAccounts) -> None:
    accounts.add("x", of_acme("r"))
    accounts.news([replace(row("r", 0, finish="abort"), num_cached_tokens=0)], 0.11)
    assert accounts.news((), 0.1 + LATER) == {}


def test_a_gateway_that_attaches_anew_is_told_nothing_of_before(accounts: GatewayAccounts) -> None:
    accounts.add("x", of_acme("r"))
    accounts.news([first("r", cached=0)], 0.11)
    accounts.close("y")
    accounts.open("y", 0.2)
    assert accounts.news((), 0.2 + LATER)["y"].served == ()


def test_who_is_alone_is_told_of_nobody_else() -> None:
    accounts = GatewayAccounts(AdmissionWindows(256, 32, ramp_s=0.0))
    accounts.open("x", 0.0)
    accounts.news((), 0.0)
    accounts.add("x", of_acme("r"))
    assert accounts.news([first("r", cached=0)], 1.0)["x"].served == ()
    assert accounts.num_live == 1
    accounts.news([row("r", 1, finish="stop")], 1.1)
    assert accounts.num_live == 0
