"""An engine that is asked its golden prompts: good, wrong, silent, broken, and nearly tied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from cluster.golden import BUILT_IN, GoldenPrompt
from cluster.golden_check import GoldenCheck
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.loading.source import ModelError
from engine.policy import FirstComeFirstServed
from engine.request import TokenLogprobs
from engine.scheduler import Scheduler
from engine.tape import TapeExecutor, TapeSpec
from engine.tokenizer import ByteTokenizer
from tests.builders import EOS, FakeClock

ANSWER = b"Paris is a town."


class BrokenExecutor(TapeExecutor):
    def submit(self, plan: Any) -> Any:
        raise RuntimeError("no device")


def checked(
    *prompts: GoldenPrompt,
    answer: Sequence[int] = ANSWER,
    logprobs: Sequence[TokenLogprobs] = (),
    near_tie: float = 0.0,
    max_model_len: int = 400,
    executor: type[TapeExecutor] = TapeExecutor,
) -> int:
    spec = TapeSpec({"*": tuple(answer)}, logprobs={"*": tuple(logprobs)} if logprobs else {})
    config = EngineConfig(num_blocks=50, max_model_len=max_model_len)
    scheduler = Scheduler(config, FirstComeFirstServed(), eos_token_ids=[EOS])
    core = EngineCore(
        scheduler, executor(spec, num_blocks=config.num_blocks, block_size=config.block_size), FakeClock()
    )
    check = GoldenCheck(core, ByteTokenizer(), config, near_tie=near_tie)
    try:
        return check.check(prompts)
    finally:
        assert not core.has_work()
        assert core.counters().blocks_in_use == 0


def asked(**expected: Any) -> GoldenPrompt:
    return GoldenPrompt(prompt="The capital of France is", **expected)


def test_any_answer_will_do_where_none_is_expected() -> None:
    assert checked(*BUILT_IN, asked()) == 0


@pytest.mark.parametrize(
    "expected", [{"text": "Paris"}, {"token_ids": list(b"Pari")}, {"text": ANSWER.decode()}]
)
def test_the_expected_answer_passes(expected: dict[str, Any]) -> None:
    assert checked(asked(**expected)) == 0


@pytest.mark.parametrize(
    ("expected", "place"),
    [
        ({"text": "Parma"}, 4),
        ({"token_ids": list(b"Rome")}, 1),
        ({"text": ANSWER.decode() + " Yes."}, 18),
    ],
)
def test_another_answer_is_refused_by_its_place_and_nothing_is_quoted(
    expected: dict[str, Any], place: int
) -> None:
    with pytest.raises(ModelError) as error:
        checked(asked(text="Paris"), asked(**expected))
    assert error.value.message == f"golden prompt 2 got another answer than expected, from token {place} on"
    assert "Par" not in str(error.value)


def test_an_answer_of_nothing_but_end_tokens_is_empty() -> None:
    with pytest.raises(ModelError, match="golden prompt 1 got an empty answer"):
        checked(*BUILT_IN, answer=())


def test_an_engine_that_fails_is_told(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelError, match="golden prompt 1 ended with engine_error"):
        checked(*BUILT_IN, executor=BrokenExecutor)


def test_a_prompt_of_which_nothing_is_expected_fits_every_context() -> None:
    assert checked(*BUILT_IN, max_model_len=2) == 0


def test_a_prompt_that_cannot_be_asked_as_it_is_says_why() -> None:
    with pytest.raises(ModelError, match="golden prompt 1 cannot be asked: prompt of 24 tokens leaves"):
        checked(asked(text="Paris"), max_model_len=24)
    with pytest.raises(ModelError, match="golden prompt 1 holds token 259; the vocabulary has 259"):
        checked(GoldenPrompt(prompt_token_ids=[259]))


def told(token_id: int, other: int, gap: float) -> TokenLogprobs:
    return TokenLogprobs(-0.5, ((token_id, -0.5), (other, -0.5 - gap)))


TIED = (told(ord("P"), ord("R"), 2.0), told(ord("a"), ord("o"), 0.05))


@pytest.mark.parametrize(
    ("expected", "near_tie", "passes"),
    [
        ({"token_ids": list(b"Pome")}, 0.1, True),
        ({"token_ids": list(b"Pome")}, 0.01, False),
        ({"token_ids": list(b"Pome")}, 0.0, False),
        ({"token_ids": list(b"Pume")}, 0.1, False),
        ({"token_ids": list(b"Rome")}, 0.1, False),
        ({"text": "Pome"}, 0.1, True),
        ({"text": "Rome"}, 0.1, False),
    ],
)
def test_a_near_tie_may_go_the_other_way_and_is_counted(
    expected: dict[str, Any], near_tie: float, passes: bool
) -> None:
    if passes:
        assert checked(asked(**expected), answer=b"Pa", logprobs=TIED, near_tie=near_tie) == 1
        return
    with pytest.raises(ModelError, match="another answer"):
        checked(asked(**expected), answer=b"Pa", logprobs=TIED, near_tie=near_tie)
