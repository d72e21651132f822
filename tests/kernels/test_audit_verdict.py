"""Every kind of failure, planted in stored compiled text, is flagged; the text as it was is not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.audit.configuration import Configuration, Expected
from kernels.audit.facts import Compiled, Facts, facts_of
from kernels.audit.job import Answer
from kernels.audit.session import audited
from kernels.audit.verdict import failures, rows_of
from tests.kernels.audit_sample import ARCH, stored

EXPECTED = Expected(streams=("weight_ptr",), has_products=True)


def found(compiled: Compiled, expected: Expected = EXPECTED) -> list[str]:
    return list(failures(facts_of(compiled, ARCH), expected))


def planted(text: str, old: str, new: str) -> Compiled:
    """The sound kernel with something else in one of its texts."""
    sound = stored("sound")
    before: str = getattr(sound, text)
    assert old in before
    return replace(sound, **{text: before.replace(old, new)})


def test_the_sound_kernel_is_as_expected() -> None:
    facts = facts_of(stored("sound"), ARCH)
    assert list(failures(facts, EXPECTED)) == []
    assert (facts.registers, facts.spill_bytes, facts.num_spills) == (40, 0, 0)
    assert facts.tensor == {"HMMA.16816.F32": 4}
    assert facts.loop_reads == {"x_ptr": 64, "weight_ptr": 128}
    assert facts.loop_accesses == {"LDGSTS.128": 2, "LDGSTS.64": 1}
    assert {(a.pattern, a.degree) for a in facts.shared_accesses} == {("lanes", 1), ("matrices", 1)}
    assert (facts.occupancy.programs, facts.occupancy.limited_by) == (12, "registers")


def test_a_kernel_compiled_with_too_few_registers_spills() -> None:
    assert found(stored("spilling")) == ["spills 24 bytes a thread, 12 loads and stores of them"]


def test_weights_with_gaps_are_read_one_by_one() -> None:
    assert found(stored("gapped")) == ["a loop reads weight_ptr by 16 bits a thread, at least 128 stated"]


def test_a_stream_that_no_loop_reads_is_no_success() -> None:
    assert found(stored("sound"), Expected(streams=("keys",))) == ["no loop reads keys"]


def test_a_product_without_tensor_instructions_fails() -> None:
    assert found(planted("sass", "HMMA.16816.F32", "FFMA")) == ["a product of f16 without tensor cores"]


def test_a_product_laid_out_for_threads_fails() -> None:
    """The second one of two, while the first has tensor cores."""
    line = next(line for line in stored("sound").ttgir.splitlines() if "tt.dot" in line)
    second = line + "\n" + line.replace("xf32, #mma>", "xf32, #blocked>")
    assert found(planted("ttgir", line, second)) == ["a product of f16 without tensor cores"]


def test_a_product_written_as_a_sum_fails() -> None:
    without = planted("ttgir", "tt.dot", "arith.mulf")
    assert found(without) == ["a product without tensor cores: none of tiles at all"]
    assert found(without, replace(EXPECTED, has_products=False)) == []


def test_float32_rounded_to_tf32_fails() -> None:
    tensor = planted("ttgir", "xf16", "xf32")
    rounded = replace(tensor, ttir=tensor.ttir.replace("xf16", "xf32"))
    asked = "inputPrecision = tf32"
    assert asked in rounded.ttir
    assert "float32 is multiplied as tf32, ieee stated" in found(rounded)
    exact = replace(rounded, ttir=rounded.ttir.replace(f", {asked}", ""))
    assert not any("multiplied" in failure for failure in found(exact))


def test_tiles_that_are_not_swizzled_fail() -> None:
    plain = planted("ttgir", "vec = 8, perPhase = 1, maxPhase = 8", "vec = 8, perPhase = 1, maxPhase = 1")
    assert found(plain) == ["bank conflicts: ttg.local_load 32x64xf16 is served in 8 turns, at most 1 stated"]
    assert found(plain, replace(EXPECTED, max_conflict_degree=8)) == []


def test_a_layout_that_is_not_known_fails() -> None:
    odd = planted(
        "ttgir", "#ttg.swizzled_shared<{vec = 8, perPhase = 1, maxPhase = 8, ", "#ttg.padded_shared<{"
    )
    (failure,) = found(odd)
    assert failure.endswith("accesses to shared memory with an unknown layout")


def test_a_kernel_that_is_too_large_fails() -> None:
    assert found(replace(stored("sound"), shared_bytes=300_000)) == [
        "does not fit a processor: too much shared memory"
    ]


def test_what_does_not_compile_or_launches_nothing_fails() -> None:
    configuration = Configuration("op", "small", {})
    broken = rows_of(configuration, ARCH, Answer([], 0.0, "CompilationError: at 3:4"), {})
    assert [row.failures for row in broken] == [("does not compile: CompilationError: at 3:4",)]
    silent = rows_of(configuration, ARCH, Answer([], 0.0), {})
    assert [row.failures for row in silent] == [("launches nothing",)]


@pytest.fixture
def sound() -> Facts:
    return facts_of(stored("sound"), ARCH)


def test_a_configuration_may_state_more_turns_than_its_kernel(sound: Facts) -> None:
    slow = tuple(replace(access, degree=2) for access in sound.shared_accesses)
    answer = Answer([replace(sound, shared_accesses=slow)], 0.0)
    (row,) = rows_of(Configuration("op", "c", {}), ARCH, answer, {})
    assert row.failures
    (row,) = rows_of(Configuration("op", "c", {}, max_conflict_degree=2), ARCH, answer, {})
    assert not row.failures


def test_a_configuration_may_state_narrower_loads_than_its_kernel(sound: Facts) -> None:
    name, bits = next(iter(sound.loop_reads.items()))
    wanted = {sound.kernel: Expected(streams=(name,))}
    answer = Answer([replace(sound, loop_reads={name: bits // 2})], 0.0)
    (row,) = rows_of(Configuration("op", "c", {}), ARCH, answer, wanted)
    assert row.failures == (f"a loop reads {name} by {bits // 2} bits a thread, at least 128 stated",)
    (row,) = rows_of(Configuration("op", "c", {}, least_load_bits=bits // 2), ARCH, answer, wanted)
    assert not row.failures


def test_what_an_architecture_cannot_have_is_told_and_not_compiled(sound: Facts) -> None:
    asked = []

    def ask(jobs: object) -> list[Answer]:
        asked.extend(jobs)  # type: ignore[call-overload]
        return [Answer([sound], 0.0)]

    table = [Configuration("op", "fp8", {"cache": "fp8"}, least_arch="sm_89"), Configuration("op", "f16", {})]
    rows = audited(table, "sm_80", ask)
    assert [(row.configuration, row.note, row.failures) for row in rows] == [
        ("fp8", "n/a: needs sm_89 or later", ()),
        ("f16", "", ()),
    ]
    assert [job.arguments for job in asked] == [{}]
