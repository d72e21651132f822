"""NVIDIA's tools, as they come with Triton, on a compiled kernel."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import triton

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def disassembly(cubin: bytes) -> str:
    return _told("nvdisasm", "-c", cubin)


def usage(cubin: bytes) -> str:
    return _told("cuobjdump", "-res-usage", cubin)


def _told(tool: str, option: str, cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(TOOLS / tool), option, file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
