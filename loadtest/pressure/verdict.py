"""Whether an answer under pressure is its solo run's, and whether it agrees with what was asked. Pure.

Where arithmetic depends on the batch, a greedy text may leave its solo run's at a *near tie*: the two
tokens at the first difference had logprobs closer than ε in the solo run (the gap of logprobs is that
of logits). A row that is drawn, penalised or biased has no such test from logprobs alone: outside
exact modes it may go its own way (`apart`): it is held to what it says of itself, and few may.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from engine.request import SamplingParams
from loadtest.pressure.answer import SiblingAnswer

Verdict = Literal["same", "near_tie", "apart", "differing"]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What arithmetic that depends on the batch may change."""

    epsilon: float
    """Of a near tie, in logits."""
    apart_share: float
    """Of the answers that are not plainly greedy, so many may be `apart`; one always may."""

    def max_apart(self, num_drawn: int) -> int:
        return max(1, int(self.apart_share * num_drawn))


TOLERANCE = {"float32": Tolerance(1e-3, 0.15), "bfloat16": Tolerance(0.5, 1.0)}
"""By the dtype that the model computes in.

A bfloat16 logit between 16 and 32 is a multiple of 0.125: two candidates are equal, or already that
far apart. 0.5 is what four roundings the wrong way make. There, more than half of what a sound engine
draws may be another token: no share of it tells anything.
"""
NUM_TOP = 5
"""Logprobs that a solo run tells, so that the other token of a near tie is among them."""


def compare(
    answer: SiblingAnswer, solo: SiblingAnswer, sampling: SamplingParams, epsilon: float | None
) -> Verdict:
    """`solo` was cut to the answer's length if that is cut. `epsilon` None: exact."""
    if answer.token_ids == solo.token_ids:
        return "same" if _agree(answer, solo, epsilon) else "differing"
    if epsilon is None:
        return "differing"
    if not is_plainly_greedy(sampling):
        return "apart"
    return "near_tie" if _is_near_tie(answer, solo, epsilon) else "differing"


def is_plainly_greedy(sampling: SamplingParams) -> bool:
    """Whether the token is always the one of the highest raw logit, a masked end apart."""
    return sampling.temperature == 0 and not sampling.has_penalties and not sampling.logit_bias


def _agree(answer: SiblingAnswer, solo: SiblingAnswer, epsilon: float | None) -> bool:
    """All but the tokens. Logprobs are compared where every bit is promised."""
    if epsilon is None and answer.logprobs != solo.logprobs:
        return False
    return answer.text == solo.text and (answer.is_cut or answer.finish == solo.finish)


def _is_near_tie(answer: SiblingAnswer, solo: SiblingAnswer, epsilon: float) -> bool:
    for place, (other, token_id) in enumerate(zip(answer.token_ids, solo.token_ids, strict=False)):
        if other != token_id:
            logprobs = dict(solo.logprobs[place].top)
            return {other, token_id} <= logprobs.keys() and abs(
                logprobs[token_id] - logprobs[other]
            ) < epsilon
    return False  # one ends where the other goes on


def contradictions(
    answer: SiblingAnswer,
    sampling: SamplingParams,
    end_token_ids: Collection[int],
    stop: Sequence[str],
    whole: str,
) -> list[str]:
    """How the answer breaks what was asked, whatever its tokens are. `whole`: the text of all of them."""
    found = []
    num_tokens = len(answer.token_ids)
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else end_token_ids)}
    is_at_end = bool(num_tokens) and answer.token_ids[-1] in ends
    if num_tokens > sampling.max_tokens:
        found.append(f"{num_tokens} tokens, at most {sampling.max_tokens} were asked for")
    if answer.finish is None:
        found.append("it never ended")
    if answer.finish == "length" and num_tokens != sampling.max_tokens:
        found.append(f"it ended by length with {num_tokens} of {sampling.max_tokens} tokens")
    if answer.finish == "stop" and not is_at_end and not _is_cut_at(stop, answer.text, whole):
        found.append("it stopped where nothing ends it")
    if any(string in answer.text for string in stop):
        found.append("its text holds a stop string")
    if answer.logprobs and len(answer.logprobs) != num_tokens:
        found.append(f"{len(answer.logprobs)} logprobs for {num_tokens} tokens")
    return found


def _is_cut_at(stop: Sequence[str], text: str, whole: str) -> bool:
    return any(whole.startswith(text + string) for string in stop)
