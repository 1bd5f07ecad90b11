"""Shared by all tests of the workers."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_torch_thread() -> None:
    """Many small tensors, few cores: torch's threads would only wait for each other."""
    torch.set_num_threads(1)
