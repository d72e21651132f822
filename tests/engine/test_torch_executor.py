"""The executor: one step's tensors, and the same text however a request is cut, batched or preempted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.dtype import resolve_dtype
from engine.request import Request, SamplingParams
from engine.sampler import Draw, SampledRow
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


@pytest.fixture(scope="module")
def reference_mode() -> TorchExecutor:
    executor = TorchExecutor(tiny_source(), device="cpu", dtype="float64", deterministic=True, num_threads=1)
    executor.allocate_kv(9)
    return executor


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


def test_what_the_plan_says_of_a_row_reaches_the_sampler(
    executor: TorchExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[SampledRow] = []

    def record(logits: torch.Tensor, rows: Sequence[SampledRow], *_: Any) -> list[Draw]:
        seen.extend(rows)
        return [Draw(100 + i) for i in range(len(rows))]

    monkeypatch.setattr("engine.torch_executor.sample", record)
    executor.allocate_kv(8)
    warm = SamplingParams(max_tokens=9, temperature=0.7)
    first = ScheduledRequest(
        "a", (5, 6), 0, (1,), 3, warm, sibling=2, history=(4, 5, 6), masked_token_ids=(2,)
    )
    plan = StepPlan(0, (first, scheduled([7], 0, (2,), None), scheduled([8], 0, (3,), 0)))
    assert executor.submit(plan).result().token_ids == (100, None, 101)
    assert seen == [SampledRow(warm, 3, 2, (4, 5, 6), (2,)), SampledRow(GREEDY, 0, 0)]


@pytest.mark.parametrize(("dtype", "kv_dtype"), [("float64", "float32"), ("float32", "bfloat16")])
@pytest.mark.parametrize("is_deterministic", [False, True], ids=["cpu path", "reference mode"])
def test_the_cache_may_be_narrower_than_the_weights(
    dtype: str, kv_dtype: str, is_deterministic: bool
) -> None:
    """The answers' margins are wide enough for it, but for a bfloat16 cache not all of the way."""
    executor = TorchExecutor(
        tiny_source(),
        device="cpu",
        dtype=dtype,
        kv_dtype=kv_dtype,
        deterministic=is_deterministic,
        num_threads=1,
    )
    core = make_torch_core(tiny_source(), dtype=dtype, executor=executor, max_num_batched_tokens=37)
    assert {cache.dtype for layer in executor._kv.layers for cache in layer} == {getattr(torch, kv_dtype)}
    got = answers(core, requests())
    num_compared = 40 if dtype == "float64" else 4
    assert [a[:num_compared] for a in got] == [e[:num_compared] for e in EXPECTED]


def first_logprob(dtype: str, kv_dtype: str) -> float:
    executor = TorchExecutor(tiny_source(), device="cpu", dtype=dtype, kv_dtype=kv_dtype, num_threads=1)
    executor.allocate_kv(40)
    asking = SamplingParams(max_tokens=1, temperature=0.0, num_logprobs=0)
    prompt = tuple(ROWS[2]["prompt_token_ids"])
    plan = StepPlan(0, (ScheduledRequest("r", prompt, 0, tuple(range(1, 20)), 0, asking),))
    return executor.submit(plan).result().logprobs[0].logprob


def test_a_narrower_cache_moves_logprobs_a_little_and_a_wider_one_not_at_all() -> None:
    assert 0 < abs(first_logprob("float32", "bfloat16") - first_logprob("float32", "float32")) < 0.05
    assert first_logprob("bfloat16", "float32") == first_logprob("bfloat16", "bfloat16")


def test_reference_mode_computes_on_one_thread_whoever_set_more() -> None:
    """Torch keeps their number thread by thread, and a matmul's bits follow it."""
    executor = TorchExecutor(tiny_source(), device="cpu", dtype="float64", deterministic=True, num_threads=3)
    executor.allocate_kv(8)

    def step_in_a_new_thread() -> int:
        torch.set_num_threads(3)
        executor.submit(StepPlan(0, (scheduled(ROWS[0]["prompt_token_ids"], 0, (1,), 0),)))
        return torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(step_in_a_new_thread).result() == 1


LEFT_OPERAND = {
    torch.ops.aten.mm: 0,
    torch.ops.aten.linear: 0,
    torch.ops.aten.matmul: 0,
    torch.ops.aten.bmm: 0,
    torch.ops.aten.addmm: 1,
    torch.ops.aten.baddbmm: 1,
}
"""Its place in the arguments of each kind of matmul."""


class MatmulRows(TorchDispatchMode):
    """Records the rows of every matmul."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (place := LEFT_OPERAND.get(func.overloadpacket)) is not None:
            self.rows[args[place].shape[-2]] += 1
        assert "scaled_dot_product" not in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lengths", [(1,), (16,), (5, 1, 30), (1,) * 20, (120,)])
def test_in_reference_mode_every_matmul_of_a_step_has_sixteen_rows(
    reference_mode: TorchExecutor, lengths: tuple[int, ...]
) -> None:
    """Whether more rows give other bits depends on the machine, so the shapes are what is checked."""
    rows = [scheduled([5] * n, 0, tuple(range(1, 9)), 0, f"r{i}") for i, n in enumerate(lengths)]
    with MatmulRows() as seen:
        reference_mode.submit(StepPlan(0, tuple(rows)))
    assert set(seen.rows) == {16}
    assert seen.rows.total() > 4 * tiny_source().config.num_layers


def test_auto_dtype_is_bfloat16_only_where_the_cpu_multiplies_it() -> None:
    assert resolve_dtype("auto", "cpu", cpu_flags=frozenset(["avx2", "avx512f"])) == "float32"
    assert resolve_dtype("auto", "cpu", cpu_flags=frozenset(["avx512_bf16"])) == "bfloat16"
    assert resolve_dtype("auto", "cpu", cpu_flags=frozenset(["amx_bf16"])) == "bfloat16"
    assert resolve_dtype("auto", "cuda", cpu_flags=frozenset()) == "bfloat16"
    assert resolve_dtype("float32", "cpu", cpu_flags=frozenset(["amx_bf16"])) == "float32"
    for device in ("cpu", "cuda"):
        flags = frozenset(["amx_bf16"])
        assert resolve_dtype("auto", device, deterministic=True, cpu_flags=flags) == "float32"
    with pytest.raises(ValueError, match="int3"):
        resolve_dtype("int3", "cpu")
