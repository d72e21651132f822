"""What can be known to stand in a rollout's way before a replica is started."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from cluster.golden import GoldenPrompt
from cluster.preflight import open_model, plan_engine, replica_bytes
from cluster.rollout.rollout import Order
from cluster.spec import ClusterSpec
from cluster.stages import StartError
from engine.loading.source import ModelSource

_SAMPLES = (
    "The head of water drives turbines, 24/7; isn't it 3.14159e-2?",
    "  def f(x):\n\treturn {'a': [x**2, None]}  # ünïcödé 🇫🇷 한국어 中文",
)
"""Split by a tokenizer in its own way: the same tokens with other merges show here."""


class TextRules(NamedTuple):
    """How text becomes tokens and back, as digests: what gateways hold, and no rollout may change."""

    vocabulary: str
    special_tokens: str
    splitting: str
    chat_template: str

    def differences(self, other: TextRules) -> list[str]:
        pairs = zip(self._fields, self, other, strict=True)
        return [name.replace("_", " ") for name, mine, its in pairs if mine != its]


@dataclass(frozen=True, slots=True)
class Version:
    """A version that may be rolled out."""

    spec: ClusterSpec
    """Of its pool."""
    replica_bytes: int
    """Main memory that one replica of it takes on the CPU."""


def text_rules(source: ModelSource) -> TextRules:
    tokenizer = source.tokenizer()
    special = (tokenizer.bos_token_id, tokenizer.eos_token_ids, sorted(tokenizer.control_tokens.items()))
    return TextRules(
        vocabulary=_digest(tokenizer.token_bytes(token_id) for token_id in range(tokenizer.vocab_size)),
        special_tokens=_digest([repr(special).encode()]),
        splitting=_digest(repr(tokenizer.encode(sample)).encode() for sample in _SAMPLES),
        chat_template=_digest([(source.chat_template() or "").encode()]),
    )


def check_version(order: Order, serving: ClusterSpec, rules: TextRules) -> Version:
    """The version that `order` asks for, beside the one that serves with these text rules.

    Reads the model's headers. Raises `StartError`.
    """
    rollout = order.rollout
    model = rollout.model or serving.settings.model
    settings = serving.settings.model_copy(update={"model": model})
    source = open_model(settings)
    revision = source.config.revision
    if not revision.startswith(rollout.revision or ""):
        raise StartError(
            f"the files of {model} are revision {revision[:12]}, not {rollout.revision}",
            "put the files of that revision there, or name the revision that is there",
        )
    if different := text_rules(source).differences(rules):
        raise StartError(
            f"{model} differs from the model that serves in its {' and its '.join(different)}",
            "gateways keep theirs: start a cluster of its own for this model",
        )
    plan = plan_engine(settings, source)
    if plan.config.max_model_len < serving.engine.config.max_model_len:
        raise StartError(
            f"{model} holds a context of {plan.config.max_model_len} tokens, and clients were promised "
            f"{serving.engine.config.max_model_len}",
            "start a cluster of its own for this model, or one with a lower --max-model-len",
        )
    spec = serving.model_copy(
        update={
            "settings": settings,
            "engine": plan,
            "revision": revision,
            "golden": _golden(order, serving),
            "pool_id": rollout.rollout_id,
        }
    )
    return Version(spec, replica_bytes(settings, source, plan))


def _golden(order: Order, serving: ClusterSpec) -> tuple[GoldenPrompt, ...]:
    """Those that were given; else those of the version that serves, whose answers are its own."""
    return order.golden or tuple(prompt.without_expectation() for prompt in serving.golden)


def _digest(parts: Iterable[bytes]) -> str:
    state = blake2b(digest_size=16)
    for part in parts:
        state.update(len(part).to_bytes(4, "little") + part)
    return state.hexdigest()
