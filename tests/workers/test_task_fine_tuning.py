from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from optimus_workers.errors import TaskError
from optimus_workers.task.fine_tuning import FrozenNorm, fine_tuned
from optimus_workers.worker.flat_model import FlatModel


def network(n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4 * 36, n_classes))


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Of a network for three classes that has seen something."""
    torch.manual_seed(1)
    model = network(3)
    model(torch.randn(8, 1, 8, 8) * 3 + 1)
    save_file(model.state_dict(), tmp_path / "trained.safetensors")
    return tmp_path / "trained.safetensors"


def test_feature_extraction_trains_the_new_head_only(weights: Path) -> None:
    torch.manual_seed(2)
    model = fine_tuned(partial(network, 5), weights, replaced=["3"], trained=["3"])
    original = network(3)
    fine_tuned(lambda: original, weights)
    assert torch.equal(model.get_parameter("0.weight"), original.get_parameter("0.weight"))
    assert [name for name, part in model.named_parameters() if part.requires_grad] == ["3.weight", "3.bias"]
    assert FlatModel(model).n_parameters == 5 * 4 * 36 + 5


def test_frozen_norms_use_the_statistics_they_came_with(weights: Path) -> None:
    model = fine_tuned(partial(network, 5), weights, replaced=["3"], trained=["3"])
    assert isinstance(model.get_submodule("1"), FrozenNorm)
    before = model.get_buffer("1.running_mean").clone()
    images = torch.randn(4, 1, 8, 8)
    assert torch.equal(model.train()(images), model.eval()(images))
    assert torch.equal(model.get_buffer("1.running_mean"), before)


def test_everything_is_trained_by_default(weights: Path) -> None:
    model = fine_tuned(partial(network, 3), weights)
    assert all(part.requires_grad for part in model.parameters())
    assert isinstance(model.get_submodule("1"), nn.BatchNorm2d)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "3.weight has shape"),
        ({"replaced": ["head"]}, "no module 'head'; it has 0, 1, 2, 3"),
        ({"replaced": ["3"], "trained": []}, "at least one module"),
        ({"replaced": ["3"], "trained": ["9"]}, "no module '9'"),
    ],
)
def test_what_does_not_fit_is_named(weights: Path, arguments: dict[str, list[str]], named: str) -> None:
    with pytest.raises(TaskError, match=named):
        fine_tuned(partial(network, 5), weights, **arguments)


def test_files_that_are_no_weights(tmp_path: Path) -> None:
    (tmp_path / "nonsense").write_bytes(b"\xff" * 100)
    for name in ("nonsense", "absent"):
        with pytest.raises(TaskError, match="cannot read the weights"):
            fine_tuned(partial(network, 5), tmp_path / name)
