"""How long a first token takes does not tell whether another tenant asked the same before."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from random import Random
from time import perf_counter

import pytest

from tests.cluster.tenants_on_one_engine import OneEngine

NUM_CALLS = 2_000
"""Of each kind."""
PROMPT_TOKENS, TOKENS_A_STEP = 512, 64
"""Eight steps to the first token, or one for a prompt that is cached."""
MAX_DISTANCE = 0.05
"""5.5 standard errors of the area under the curve of two samples of that size that are alike."""


def area_under_curve(ones: Sequence[float], others: Sequence[float]) -> float:
    """How often a value of `ones` is below one of `others`, ties as half: 0.5 if nothing tells them apart."""
    ranked = sorted(ones)
    below = sum(bisect_left(ranked, value) + bisect_right(ranked, value) for value in others)
    return below / (2 * len(ones) * len(others))


def test_the_area_tells_two_kinds_apart() -> None:
    assert area_under_curve([1, 2, 3], [4, 5]) == 1.0
    assert area_under_curve([4, 5], [1, 2, 3]) == 0.0
    assert area_under_curve([1, 1], [1, 1, 1]) == 0.5
    assert area_under_curve([1, 3], [2, 4]) == 0.75


def first_call_s(engine: OneEngine, tenant: str, prompt: Sequence[int]) -> float:
    begun = perf_counter()
    engine.run(engine.request(tenant, prompt, max_tokens=1))
    return perf_counter() - begun


def first_calls(tenant_before: str) -> tuple[list[float], list[float]]:
    """First calls of `zeta` with prompts that `tenant_before` asked just before, and with new ones.

    Interleaved at random; the other tenant asks something before each of both kinds.
    """
    random, engine = (
        Random(17),
        OneEngine(num_blocks=4001, max_num_batched_tokens=TOKENS_A_STEP, max_num_seqs=8),
    )
    known: list[float] = []
    unknown: list[float] = []
    kinds = [known] * NUM_CALLS + [unknown] * NUM_CALLS
    random.shuffle(kinds)
    for seconds in kinds:
        asked, prompt = ([random.randrange(30, 30_000) for _ in range(PROMPT_TOKENS)] for _ in range(2))
        first_call_s(engine, tenant_before, prompt if seconds is known else asked)
        seconds.append(first_call_s(engine, "zeta", prompt))
    return known, unknown


@pytest.mark.soak
def test_first_calls_do_not_tell_what_another_tenant_asked() -> None:
    known, unknown = first_calls("acme")
    area = area_under_curve(known, unknown)
    assert abs(area - 0.5) <= MAX_DISTANCE, f"area {area:.3f}"


@pytest.mark.soak
def test_the_same_measure_sees_what_the_tenant_itself_asked() -> None:
    known, unknown = first_calls("zeta")
    assert area_under_curve(known, unknown) > 0.5 + 2 * MAX_DISTANCE
