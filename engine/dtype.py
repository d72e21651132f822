"""Which number format weights and KV are kept in. Reads the CPU's flags, holds no torch."""

from __future__ import annotations

from pathlib import Path

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2}

_NATIVE_BFLOAT16 = frozenset(("avx512_bf16", "amx_bf16"))


def resolve_dtype(
    asked: str, device: str, *, deterministic: bool = False, cpu_flags: frozenset[str] | None = None
) -> str:
    """`auto`: bfloat16 where the device multiplies it natively, else float32 (numbers in NOTES.md).

    In reference mode (`deterministic`) it is float32. `cpu_flags` are this machine's unless given.
    Raises ValueError for a name that is not known.
    """
    if asked != "auto":
        if asked not in DTYPE_BYTES:
            raise ValueError(f"dtype must be auto or one of {', '.join(DTYPE_BYTES)}, not {asked!r}")
        return asked
    if deterministic:
        return "float32"
    if device != "cpu":
        return "bfloat16"
    flags = _cpu_flags() if cpu_flags is None else cpu_flags
    return "bfloat16" if flags & _NATIVE_BFLOAT16 else "float32"


def resolve_kv_dtype(asked: str, dtype: str) -> str:
    """The cache's: `auto` is `dtype`, that of the weights."""
    return dtype if asked == "auto" else asked


def _cpu_flags() -> frozenset[str]:
    """As Linux names them; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
