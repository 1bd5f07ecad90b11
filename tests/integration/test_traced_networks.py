"""A worker's description of a torch module says the same as the hand-written one and as torch itself."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from optimus_models.analytic import count
from optimus_models.analytic.description import network_from_description
from optimus_models.analytic.layers import Network
from optimus_models.analytic.networks import alexnet, resnet, vgg
from optimus_workers.errors import TaskError
from optimus_workers.task.network import describe
from optimus_workers.zoo import networks


def through_json(model: nn.Module, example: Tensor) -> Network:
    return network_from_description(json.loads(json.dumps(describe(model, example, "net"))))


def counted_by_torch(model: nn.Module, example: Tensor) -> tuple[int, int]:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model.eval()(example)
    return sum(parameter.numel() for parameter in model.parameters()), counter.get_total_flops() // 2


def torch_alexnet() -> nn.Module:
    """With the padding of Krizhevsky 2014, and nothing of a library."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 11, stride=4, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(3, 2),
        *_classifier(256 * 6 * 6),
    )


def torch_vgg_16() -> nn.Module:
    layers: list[nn.Module] = []
    before = 3
    for channels, repeats in zip((64, 128, 256, 512, 512), (2, 2, 3, 3, 3), strict=True):
        for _ in range(repeats):
            layers += [nn.Conv2d(before, channels, 3, padding=1), nn.ReLU()]
            before = channels
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_classifier(512 * 7 * 7))


def _classifier(inputs: int) -> list[nn.Module]:
    hidden = [nn.Linear(inputs, 4096), nn.ReLU(), nn.Dropout(), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout()]
    return [nn.Flatten(), *hidden, nn.Linear(4096, 1000)]


class Block(nn.Module):
    """The basic block of ResNet-18."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride, bias=False)
        self.shortcut_norm = nn.Identity() if stride == 1 else nn.BatchNorm2d(after)

    def forward(self, x: Tensor) -> Tensor:
        residual = self.norm2(self.second(torch.relu(self.norm1(self.first(x)))))
        return torch.relu(residual + self.shortcut_norm(self.shortcut(x)))


def torch_resnet_18() -> nn.Module:
    blocks = [
        Block(64 * max(1, 2 ** (s - 1)) if b == 0 else 64 * 2**s, 64 * 2**s, 1 + (s > 0 and b == 0))
        for s in range(4)
        for b in range(2)
    ]
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *blocks,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(512, 1000),
    )


@pytest.mark.parametrize(
    ("build", "by_hand"),
    [(torch_alexnet, alexnet), (torch_vgg_16, lambda: vgg(16)), (torch_resnet_18, lambda: resnet(18))],
    ids=["alexnet", "vgg-16", "resnet-18"],
)
def test_known_networks_cost_what_their_descriptions_say(
    build: Callable[[], nn.Module], by_hand: Callable[[], Network]
) -> None:
    with torch.device("meta"):  # shapes are all that counts: no memory, no arithmetic
        traced, written = count(through_json(build(), torch.zeros(1, 3, 224, 224))), count(by_hand())
    assert traced.parameters == written.parameters
    assert traced.multiply_adds == written.multiply_adds
    assert traced.share("Convolution") == pytest.approx(written.share("Convolution"))


ZOO = {
    "mlp": lambda: networks.mlp(64, 32, 3, 10),
    "cnn": lambda: networks.cnn(8, 8, 8, 10),
    "resnet": lambda: networks.resnet(8, 2, 10),
}


@pytest.mark.parametrize("name", sorted(ZOO))
def test_zoo_networks_cost_what_torch_counts(name: str) -> None:
    model, example = ZOO[name](), torch.zeros(1, 1, 8, 8)
    cost = count(through_json(model, example))
    assert (cost.parameters, cost.multiply_adds) == counted_by_torch(model, example)


class Shared(nn.Module):
    """One layer used twice, a parameter of its own, and a layer over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(6, 6)
        self.shift = nn.Parameter(torch.zeros(6))
        self.over_words = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        once = self.twice(x)
        words: Tensor = self.over_words((self.twice(once) + self.shift).unsqueeze(1).expand(-1, 4, -1))
        return words


def test_shared_and_free_parameters_are_counted_once() -> None:
    model, example = Shared(), torch.zeros(1, 6)
    cost = count(through_json(model, example))
    assert (cost.parameters, cost.multiply_adds) == counted_by_torch(model, example)


def test_describing_leaves_the_module_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    describe(model, torch.ones(1, 1, 8, 8))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Undecided(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


def test_what_cannot_be_traced_is_said() -> None:
    with pytest.raises(TaskError, match="Undecided cannot be traced"):
        describe(Undecided(), torch.ones(1, 2))
