"""Asks a ledger, and holds what it answers against what is found behind it."""

from __future__ import annotations

from typing import Any

from tenants.ledger.ask import Ask
from tenants.ledger.grant import Granted, Refused
from tenants.ledger.ledger import Ledger
from tenants.terms import Prices
from tests.tenants.ledger.builders import an_ask

CACHED_A_TENTH = Prices(input=10**6, cached_input=10**5, output=10**6)
"""A token costs one."""


async def granted(ledger: Ledger, *args: Any, **fields: Any) -> Granted:
    answer = await asked(ledger, an_ask(*args, **fields))
    assert isinstance(answer, Granted), answer
    return answer


async def refused(ledger: Ledger, *args: Any, **fields: Any) -> Refused:
    answer = await asked(ledger, an_ask(*args, **fields))
    assert isinstance(answer, Refused), answer
    return answer


async def asked(ledger: Ledger, ask: Ask) -> Granted | Refused:
    """What is told with the answer is what is found behind it."""
    answer = await ledger.reserve(ask)
    assert await ledger.standing(ask.tenant_id, ask.model, ask.scopes) == answer.standing
    return answer


def gauges(answer: Granted | Refused, field: str = "remaining") -> dict[str, Any]:
    return {gauge.kind: getattr(gauge, field) for gauge in answer.standing.gauges}
