"""The executor: one step's tensors, and the same text however a request is cut, batched or preempted."""

from __future__ import annotations

import pytest

from engine.dtype import resolve_dtype
from engine.request import Request, SamplingParams
from engine.step import ScheduledRequest, StepPlan
from engine.torch_executor import TorchExecutor
from tests.builders import make_request
from tests.builders_model import answers, make_torch_core, tiny_answers, tiny_source

GREEDY = SamplingParams(max_tokens=1, temperature=0.0)
ROWS = tiny_answers()
EXPECTED = [row["token_ids"] for row in ROWS]


@pytest.fixture(scope="module")
def executor() -> TorchExecutor:
    return TorchExecutor(tiny_source(), device="cpu", dtype="float64", num_threads=1)


def requests(count: int = len(ROWS)) -> list[Request]:
    return [
        make_request(
            f"r{i}", row["prompt_token_ids"], max_tokens=len(row["token_ids"]), ignore_eos=True, block_size=16
        )
        for i, row in enumerate(ROWS[:count])
    ]


def scheduled(
    tokens: list[int], computed: int, blocks: tuple[int, ...], output_index: int | None, name: str = "r"
) -> ScheduledRequest:
    return ScheduledRequest(name, tuple(tokens), computed, blocks, output_index, GREEDY)


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_num_batched_tokens": 16, "max_num_seqs": 16},
        {"max_num_batched_tokens": 512, "max_num_seqs": 16},
        {"max_num_batched_tokens": 512, "max_num_seqs": 1},
        {"max_num_batched_tokens": 64, "max_num_seqs": 16, "enable_prefix_caching": False},
        {"max_num_batched_tokens": 37, "max_num_seqs": 16, "block_size": 8},
    ],
    ids=["chunk 16", "chunk 512", "one at a time", "no prefix cache", "odd chunk, blocks of 8"],
)
def test_text_is_the_numpy_text(executor: TorchExecutor, sizes: dict[str, int]) -> None:
    core = make_torch_core(tiny_source(), dtype="float64", executor=executor, **sizes)
    block_size = sizes.get("block_size", 16)
    asked = [
        make_request(r.request_id, r.prompt_token_ids, max_tokens=40, ignore_eos=True, block_size=block_size)
        for r in requests()
    ]
    assert answers(core, asked) == EXPECTED


def test_prefix_hits_do_not_change_the_text(executor: TorchExecutor) -> None:
    core = make_torch_core(tiny_source(), dtype="float64", executor=executor, max_num_seqs=4)
    assert answers(core, requests()) == EXPECTED
    before = core.counters().prefix_hits_tokens_total
    assert answers(core, requests()) == EXPECTED
    assert core.counters().prefix_hits_tokens_total - before > 16 * len(ROWS)


def test_preemption_does_not_change_the_text(executor: TorchExecutor) -> None:
    core = make_torch_core(
        tiny_source(),
        dtype="float64",
        executor=executor,
        num_blocks=24,
        max_num_seqs=16,
        enable_prefix_caching=False,
    )
    assert answers(core, requests()) == EXPECTED
    assert core.counters().preemptions_total > 0


def test_a_resumed_request_goes_on_where_it_was(executor: TorchExecutor) -> None:
    core = make_torch_core(tiny_source(), dtype="float64", executor=executor)
    row = ROWS[1]
    resumed = make_request(
        "r",
        row["prompt_token_ids"],
        max_tokens=40,
        ignore_eos=True,
        block_size=16,
        output_token_ids=tuple(row["token_ids"][:15]),
    )
    assert answers(core, [resumed]) == [row["token_ids"][15:]]


def test_a_chunk_that_does_not_reach_the_end_samples_nothing(executor: TorchExecutor) -> None:
    executor.allocate_kv(8)
    prompt = ROWS[0]["prompt_token_ids"]
    plan = StepPlan(3, (scheduled(prompt[:3], 0, (1,), None), scheduled(prompt, 0, (2,), 0, "s")))
    result = executor.submit(plan).result()
    assert result.step == 3
    assert result.token_ids == (None, ROWS[0]["token_ids"][0])


def test_copies_are_made_before_the_step_computes(executor: TorchExecutor) -> None:
    executor.allocate_kv(8)
    prompt, first = ROWS[0]["prompt_token_ids"], ROWS[0]["token_ids"][0]
    executor.submit(StepPlan(0, (scheduled(prompt, 0, (1,), 0),)))
    plan = StepPlan(1, (scheduled([first], len(prompt), (5,), 1),), copies=((1, 5),))
    assert executor.submit(plan).result().token_ids == (ROWS[0]["token_ids"][1],)


def test_an_empty_step_makes_nothing(executor: TorchExecutor) -> None:
    executor.allocate_kv(2)
    assert executor.submit(StepPlan(0, ())).result().token_ids == ()


def test_sampling_depends_on_the_seed_and_not_on_the_batch(executor: TorchExecutor) -> None:
    def drawn(batch: int, seed: int) -> list[int]:
        core = make_torch_core(tiny_source(), dtype="float64", executor=executor)
        asked = [
            Request(
                request_id=f"r{i}",
                prompt_token_ids=tuple(ROWS[i]["prompt_token_ids"]),
                sampling=SamplingParams(
                    max_tokens=20, temperature=0.8, top_p=0.9, seed=seed + i, ignore_eos=True
                ),
                hash_root=b"",
            )
            for i in range(batch)
        ]
        return answers(core, asked)[0]

    assert drawn(1, 7) == drawn(8, 7)
    assert drawn(1, 7) != drawn(1, 8)


def test_auto_dtype_is_bfloat16_only_where_the_cpu_multiplies_it() -> None:
    assert resolve_dtype("auto", "cpu", cpu_flags=frozenset(["avx2", "avx512f"])) == "float32"
    assert resolve_dtype("auto", "cpu", cpu_flags=frozenset(["avx512_bf16"])) == "bfloat16"
    assert resolve_dtype("auto", "cpu", cpu_flags=frozenset(["amx_bf16"])) == "bfloat16"
    assert resolve_dtype("auto", "cuda", cpu_flags=frozenset()) == "bfloat16"
    assert resolve_dtype("float32", "cpu", cpu_flags=frozenset(["amx_bf16"])) == "float32"
    with pytest.raises(ValueError, match="int3"):
        resolve_dtype("int3", "cpu")
