"""The probe of the machine: the figures are this machine's, so only their sense is checked."""

from __future__ import annotations

import pytest

from loadtest import machine_probe


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_limits_are_in_the_range_of_machines(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_probe, "_READ_BYTES", 2**22)
    monkeypatch.setattr(machine_probe, "_PROBE_S", 0.0)
    limits = machine_probe.probe_machine(dtype, "cpu")
    assert 1e8 < limits.bytes_per_s < 1e13
    assert 1e8 < limits.flops_per_s < 1e15


def test_the_best_try_counts_and_the_first_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Looks at the clock: three tries of 0.3, 0.05 and 0.2 s, after one that is not timed."""
    looks = iter([0.0, 0.3, 1.0, 1.05, 2.0, 2.2])
    monkeypatch.setattr(machine_probe.time, "perf_counter", lambda: next(looks))
    tries = []

    def work() -> machine_probe.Tensor:
        tries.append(1)
        return machine_probe.torch.zeros(1)

    assert machine_probe._best_s(work) == pytest.approx(0.05)
    assert len(tries) == 4
