"""Prompts of a trace: of exact length, equal exactly where the traced ones were."""

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.trace import TraceRow
from loadtest.trace_prompts import TracePrompts
from tests.loadtest.test_shared_prefix import remembered_share


def a_row(input_length: int, *hash_ids: int, output_length: int = 9) -> TraceRow:
    return TraceRow(0, input_length, output_length, hash_ids)


def prompts_of(*rows: TraceRow, seed: int = 0, vocab_size: int = 256) -> list[list[int] | str]:
    workload = TracePrompts(rows, seed=seed, vocab_size=vocab_size)
    return [workload.prompt(number).content for number in range(len(rows))]


def test_the_same_id_is_the_same_512_tokens_wherever_it_stands() -> None:
    one, two, cut = prompts_of(a_row(1024, 4, 7), a_row(1536, 7, 5, 4), a_row(700, 4, 5))
    assert one[512:] == two[:512]
    assert one[:512] == two[1024:] == cut[:512]
    assert two[512:700] == cut[512:]
    assert [len(one), len(two), len(cut)] == [1024, 1536, 700]
    assert len({tuple(block) for block in (one[:512], one[512:], two[512:1024])}) == 3
    assert all(100 <= token < 256 for token in two)


def test_prompts_follow_from_the_seed() -> None:
    row = a_row(512, 3)
    assert prompts_of(row) == prompts_of(row) != prompts_of(row, seed=1)
    assert max(prompts_of(row, vocab_size=50_000)[0]) > 1000


def test_a_prompt_may_be_as_long_as_the_longest_context() -> None:
    (prompt,) = prompts_of(a_row(131_072, *range(256)))
    assert len(prompt) == 131_072


def test_answers_are_as_long_as_traced_unless_that_is_bounded() -> None:
    rows = [a_row(1, 0, output_length=9), a_row(1, 0, output_length=900)]
    free = TracePrompts(rows, seed=0, vocab_size=256)
    bounded = TracePrompts(rows, seed=0, vocab_size=256, max_output_tokens=32)
    assert [free.prompt(number).output_tokens for number in (0, 1)] == [9, 900]
    assert [bounded.prompt(number).output_tokens for number in (0, 1)] == [9, 32]


def test_ideally_a_known_beginning_is_never_computed_again() -> None:
    rows = [a_row(1024, 1, 2), a_row(1024, 1, 3), a_row(1024, 3, 2), a_row(530, 1, 2), a_row(1024, 1, 2)]
    workload = TracePrompts(rows, seed=0, vocab_size=256)
    assert workload.ideal_hit_rate(0) is None
    assert workload.ideal_hit_rate(1) == 0.0
    assert workload.ideal_hit_rate(2) == 512 / 2048
    assert workload.ideal_hit_rate(3) == 512 / 3072  # the block 2 was seen, but after another one
    assert workload.ideal_hit_rate(4) == (512 + 528) / 3602
    assert workload.ideal_hit_rate(5) == (512 + 528 + 1008) / 4626


@st.composite
def rows(draw: st.DrawFn) -> list[TraceRow]:
    ids = st.lists(st.integers(0, 3), min_size=1, max_size=3)
    return [
        a_row(512 * (len(hash_ids) - 1) + draw(st.integers(1, 512)), *hash_ids)
        for hash_ids in draw(st.lists(ids, min_size=1, max_size=6))
    ]


@settings(max_examples=40)
@given(rows())
def test_the_ideal_is_that_of_a_cache_that_forgets_nothing(rows: list[TraceRow]) -> None:
    workload = TracePrompts(rows, seed=0, vocab_size=256)
    prompts = [workload.prompt(number).content for number in range(len(rows))]
    assert workload.ideal_hit_rate(len(rows)) == remembered_share(prompts)
