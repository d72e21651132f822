"""A tape that answers every prompt of a load in its own way, as a model would."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

from engine.loading.source import ModelSource
from engine.loading.tape_model import TapeModel
from engine.tape import prompt_hash
from loadtest.pressure.load import Case

_LETTERS = b"abcdeing. \n"
"""Stop strings are made of them."""


def with_own_answers(source: ModelSource, cases: Sequence[Case]) -> ModelSource:
    """`source`, if it is a tape, with an answer for each prompt of `cases`; its own script is not played."""
    if source.tape is None:
        return source
    tapes = {name: _answer(name) for name in (prompt_hash(case.request.prompt_token_ids) for case in cases)}
    return TapeModel(replace(source.tape, tapes=tapes), source.tokenizer(), source.chat_template())


def _answer(name: str) -> tuple[int, ...]:
    """1 to 64 tokens: some end before their `max_tokens`, some would go on."""
    rng = Random(name)
    return tuple(rng.choices(_LETTERS, k=rng.randint(1, 64)))
