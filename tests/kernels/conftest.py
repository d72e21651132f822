"""Kernels run through Triton's interpreter, on any machine: said before anything imports Triton. On a GPU
they are held to their references by `headrace kernels parity`."""

import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

if "TRITON_INTERPRET" not in os.environ:
    assert "triton" not in sys.modules, "Triton was imported before it could be told to interpret"
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> None:
    """Tensors of a few hundred numbers: a second thread only waits for the first."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="package")
def _as_silent_as_a_gpu() -> Iterator[None]:
    """The interpreter is numpy, which warns of NaN and infinity; on a GPU they are values like others."""
    with np.errstate(all="ignore"):
        yield
