"""Behind a public prefix tenants are as apart as without one: reasons, failures, events, any history."""

from __future__ import annotations

from random import Random
from typing import Any

from cluster.index.prefix_index import INDEX_EVERY
from cluster.public_prefixes import PublicPrefixes
from engine.block_chain import NamedBlock
from engine.block_events import BlockListener
from engine.block_hash import public_root
from engine.executor import Done
from engine.step import StepPlan, StepResult
from engine.tape import TapeExecutor, TapeSpec
from tests.cluster.tenants_on_one_engine import ANSWER, MODEL_ROOT, OneEngine

FULL = tuple(range(100, 108))
"""Two blocks of 4 tokens."""
PUBLIC = PublicPrefixes([FULL])


# --- why a prompt was not cached ---------------------------------------------------------------


def test_a_miss_behind_a_public_prefix_says_nothing_of_another_tenant() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", [*FULL, 1, 2, 3, 4, 5])
    other = engine.ask("zeta", [*FULL, 1, 2, 9, 9, 5])
    assert (other.cached_tokens, other.diverged_at) == (8, None)
    assert engine.ask("acme", [*FULL, 1, 2, 9, 9, 5]).diverged_at == 10


def test_a_public_block_is_not_compared_with_what_tenants_put_behind_its_parent() -> None:
    engine = OneEngine(PublicPrefixes([FULL, (*FULL, 50, 51, 52, 53)]))
    engine.ask("acme", [*FULL, 50, 51, 52, 9, 9])
    assert engine.ask("zeta", [*FULL, 50, 51, 52, 53, 9]).diverged_at is None


def test_many_other_tenants_do_not_crowd_out_what_a_miss_is_compared_with() -> None:
    engine = OneEngine(PUBLIC)
    engine.ask("acme", [*FULL, 1, 2, 3, 4, 5])
    for number in range(20):
        engine.ask(f"t{number}", [*FULL, 7, 7, 7, 7, 7])
    assert engine.ask("acme", [*FULL, 1, 2, 9, 9, 5]).diverged_at == 10


# --- failures and events ----------------------------------------------------------------------


class FailsOnce(TapeExecutor):
    """The row of each request whose id is told fails."""

    def __init__(self) -> None:
        super().__init__(TapeSpec({"*": ANSWER}), num_blocks=1001, block_size=4)
        self.fails = ""

    def submit(self, plan: StepPlan) -> Any:
        result = super().submit(plan).result()
        rows = {row for row, one in enumerate(plan.scheduled) if self.fails and self.fails in one.request_id}
        token_ids = tuple(None if row in rows else one for row, one in enumerate(result.token_ids))
        return Done(StepResult(result.step, token_ids, result.logprobs, dict.fromkeys(rows, "nan")))


def test_a_public_block_that_others_sit_on_survives_the_failure_of_one() -> None:
    executor = FailsOnce()
    engine = OneEngine(PUBLIC, executor)
    engine.ask("acme", [*FULL, 1, 2, 3, 4, 5])
    executor.fails = "zeta"
    engine.ask("zeta", [*FULL, 9])
    executor.fails = ""
    assert engine.ask("acme", [*FULL, 1, 2, 3, 4, 5]).cached_tokens == 12


def test_a_public_block_that_only_the_failed_request_vouches_for_loses_its_name() -> None:
    executor = FailsOnce()
    engine = OneEngine(PUBLIC, executor)
    engine.ask("acme", [*FULL, 1], max_tokens=1)
    executor.fails = "zeta"
    engine.ask("zeta", [*FULL, 9])
    executor.fails = ""
    assert engine.ask("acme", [*FULL, 1]).cached_tokens == 0


class Heard(BlockListener):
    def __init__(self) -> None:
        self.stored_under: dict[bytes, set[bytes]] = {}

    def stored(self, root: bytes, block: NamedBlock) -> None:
        self.stored_under.setdefault(root, set()).add(block.block_hash)


def test_the_index_is_told_of_both_parts_under_the_root_that_look_ups_name() -> None:
    heard = Heard()
    engine = OneEngine(PUBLIC, listener=heard)
    prompt = [*FULL, *range(4 * INDEX_EVERY), 1]
    request = engine.request("acme", prompt, max_tokens=1)
    engine.run(request)
    assert heard.stored_under == {public_root(MODEL_ROOT): {*request.block_hashes}}


def test_no_history_of_two_tenants_breaks_the_bookkeeping_or_shares_a_private_block() -> None:
    """A small pool, so that public blocks are evicted, and requests are preempted."""
    random = Random(5)
    engine = OneEngine(PublicPrefixes([FULL, (*FULL, 1, 1, 1, 1)]), num_blocks=25)
    hits = 0
    for _ in range(400):
        requests = [
            engine.request(
                random.choice(("acme", "zeta", "beta")),
                [*FULL[: random.choice((4, 8, 8, 8))], *random.choices((1, 2), k=random.randint(1, 12))],
                max_tokens=random.randint(1, 8),
                n=random.choice((1, 1, 2)),
            )
            for _ in range(random.randint(1, 3))
        ]
        served = engine.run(*requests)
        engine.core.check_integrity()
        for request, one in zip(requests, served, strict=True):
            num_public = request.branch.num_public_blocks if request.branch else 0
            assert len(one.foreign_blocks) <= num_public
            hits += bool(one.cached_tokens)
    assert hits > 100
