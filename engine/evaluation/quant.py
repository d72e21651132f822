"""What quantisation costs a model: beside the unquantised one, on one text, with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

from engine.evaluation import agreement
from engine.evaluation.agreement import Spread
from engine.evaluation.model import Draw, EvaluatedModel
from engine.evaluation.perplexity import Reading, read
from engine.evaluation.text import windows
from engine.loading.source import ModelError, ModelSource
from engine.quantization import Quantization

TEMPERATURES = (0.0, 0.7, 1.0)
WINDOW_TOKENS = 256
"""Of the text that are read at once."""
NUM_PROMPTS = 8
PROMPT_TOKENS = 48
OUTPUT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Plan:
    """What every model is asked. Raises ValueError for a text or a context that is too short."""

    token_ids: tuple[int, ...]
    num_seeds: int
    context: int
    """Tokens that the model was trained for: beyond them its answers say nothing of its weights."""

    def __post_init__(self) -> None:
        needed = PROMPT_TOKENS + OUTPUT_TOKENS
        if self.context < needed:
            raise ValueError(f"the model's context has {self.context} tokens, at least {needed} are needed")
        windows(self.token_ids, max(self.window_tokens, PROMPT_TOKENS))

    @property
    def window_tokens(self) -> int:
        return min(WINDOW_TOKENS, len(self.token_ids), self.context)

    @property
    def max_tokens(self) -> int:
        return max(self.window_tokens, PROMPT_TOKENS + OUTPUT_TOKENS)

    @property
    def prompts(self) -> list[tuple[int, ...]]:
        """From all over the text."""
        found = windows(self.token_ids, PROMPT_TOKENS)
        return found[:: max(1, len(found) // NUM_PROMPTS)][:NUM_PROMPTS]

    @property
    def draws(self) -> list[Draw]:
        """The highest logit needs no seed, so there is one."""
        return [
            (temperature, seed)
            for temperature in TEMPERATURES
            for seed in range(self.num_seeds if temperature > 0 else 1)
        ]


@dataclass(frozen=True, slots=True)
class Answers:
    """What one model made of a plan."""

    reading: Reading
    continuations: dict[Draw, list[tuple[int, ...]]]
    """Left to itself, by prompt."""
    drawn: dict[Draw, list[int]]
    """Behind each prompt and the unquantised model's continuation, position by position."""


def ask(model: EvaluatedModel, plan: Plan, unquantized: Answers | None = None) -> Answers:
    """`unquantized` is None for the model that the others are held against.

    Raises ModelError for one whose logits are no finite numbers: it has nothing to say.
    """
    reading = read((window, model.logits(window)) for window in windows(plan.token_ids, plan.window_tokens))
    if not isfinite(reading.perplexity):
        raise ModelError(f"the model's perplexity is {reading.perplexity}", "give one with sound weights")
    continuations = model.generate(plan.prompts, plan.draws, OUTPUT_TOKENS)
    given = continuations if unquantized is None else unquantized.continuations
    drawn = {
        (temperature, seed): [
            token_id
            for prompt, continuation in zip(plan.prompts, given[temperature, seed], strict=True)
            for token_id in agreement.draws(model.logits, prompt, continuation, temperature, seed)
        ]
        for temperature, seed in plan.draws
    }
    return Answers(reading, continuations, drawn)


def compared(quantization: Quantization, answers: Answers, unquantized: Answers) -> dict[str, Any]:
    """One row."""
    perplexity, before = answers.reading.perplexity, unquantized.reading.perplexity
    same = agreement.share_equal(answers.reading.likeliest, unquantized.reading.likeliest)
    return {
        "quantization": quantization,
        "perplexity": round(perplexity, 4),
        "perplexity_ratio": round(perplexity / before, 5),
        "greedy_agreement": round(same, 4),
        "sampled": [_sampled(temperature, answers, unquantized) for temperature in TEMPERATURES],
    }


def _sampled(temperature: float, answers: Answers, unquantized: Answers) -> dict[str, Any]:
    """Over the seeds: draws that are equal behind the same words, and tokens until free texts part (the mean
    over prompts)."""
    draws = [draw for draw in answers.drawn if draw[0] == temperature]
    equal = [agreement.share_equal(answers.drawn[draw], unquantized.drawn[draw]) for draw in draws]
    alike = [
        _mean(
            [
                agreement.first_difference(own, other)
                for own, other in zip(
                    answers.continuations[draw], unquantized.continuations[draw], strict=True
                )
            ]
        )
        for draw in draws
    ]
    return {
        "temperature": temperature,
        "agreement": _rounded(Spread.of(equal)),
        "first_difference": _rounded(Spread.of(alike)),
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _rounded(spread: Spread) -> dict[str, float]:
    return {name: round(value, 4) for name, value in asdict(spread).items()}


def compare(
    source: ModelSource,
    plan: Plan,
    quantizations: Sequence[Quantization],
    *,
    dtype: str,
    device: str,
    tell: Callable[[str], object] = lambda stage: None,
) -> list[dict[str, Any]]:
    """A row for each, one model in memory at a time. Raises ModelError for what a model cannot have."""

    def answers(quantization: Quantization, unquantized: Answers | None = None) -> Answers:
        tell(quantization)
        model = EvaluatedModel(source, quantization, dtype=dtype, device=device, max_tokens=plan.max_tokens)
        return ask(model, plan, unquantized)

    unquantized = answers("none")
    return [
        compared(quantization, answers(quantization, unquantized), unquantized)
        for quantization in quantizations
    ]
