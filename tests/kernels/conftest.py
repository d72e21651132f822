import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread() -> None:
    """Tensors of a few hundred numbers: a second thread only waits for the first."""
    torch.set_num_threads(1)
