"""Inception-v3 (Szegedy et al., CVPR 2016) for images (n, 3, 299, 299); from 75 pixels on it works as well.

Without the auxiliary classifier, which is dropped after training anyway.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

Kernel = int | tuple[int, int]
Step = tuple[int, Kernel]
"""Output channels and kernel of one convolution."""


def inception_v3(n_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """The network; logits (n, n_classes)."""
    stem = [*_conv(3, 32, 3, stride=2, padded=False), *_conv(32, 32, 3, padded=False), *_conv(32, 64, 3)]
    stem += [nn.MaxPool2d(3, 2), *_conv(64, 80, 1), *_conv(80, 192, 3, padded=False), nn.MaxPool2d(3, 2)]
    blocks, width = _blocks(192)
    head = [nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout), nn.Flatten(), nn.Linear(width, n_classes)]
    return nn.Sequential(*stem, *blocks, *head)


class Branches(nn.Module):
    """The outputs of all branches side by side, along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


def _blocks(width: int) -> tuple[list[nn.Module], int]:
    """The eleven blocks and the number of channels after them."""
    blocks: list[nn.Module] = []
    for pooled in (32, 64, 64):
        blocks.append(_mixed(width, [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], pooled=pooled))
        width = 64 + 64 + 96 + pooled
    blocks.append(_reducing(width, [(384, 3)], [(64, 1), (96, 3), (96, 3)]))
    width += 384 + 96
    for c in (128, 160, 160, 192):
        across: list[Step] = [(c, 1), (c, (1, 7)), (192, (7, 1))]
        twice: list[Step] = [(c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))]
        blocks.append(_mixed(width, [(192, 1)], across, twice, pooled=192))
    blocks.append(_reducing(width, [(192, 1), (320, 3)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)]))
    width += 320 + 192
    for _ in range(2):
        blocks.append(_widest(width))
        width = 320 + 2 * 768 + 192
    return blocks, width


def _mixed(width: int, *branches: Sequence[Step], pooled: int) -> nn.Module:
    return Branches(*(_branch(width, steps) for steps in branches), _pooled(width, pooled))


def _reducing(width: int, *branches: Sequence[Step]) -> nn.Module:
    """Halves the image: the last convolution of each branch and a pooling have stride 2."""
    ends = [_branch(width, steps, last_stride=2) for steps in branches]
    return Branches(*ends, nn.MaxPool2d(3, 2))


def _widest(width: int) -> nn.Module:
    """The blocks at the end, whose branches fork once more."""
    forked = [
        nn.Sequential(_branch(width, steps), Branches(_branch(384, [(384, (1, 3))]), _branch(384, [(384, (3, 1))])))
        for steps in ([(384, 1)], [(448, 1), (384, 3)])
    ]
    return Branches(_branch(width, [(320, 1)]), *forked, _pooled(width, 192))


def _pooled(width: int, channels: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *_conv(width, channels, 1))


def _branch(width: int, steps: Sequence[Step], last_stride: int = 1) -> nn.Module:
    layers: list[nn.Module] = []
    for number, (channels, kernel) in enumerate(steps, start=1):
        stride = last_stride if number == len(steps) else 1
        layers += _conv(width, channels, kernel, stride=stride, padded=stride == 1)
        width = channels
    return nn.Sequential(*layers)


def _conv(inputs: int, outputs: int, kernel: Kernel, stride: int = 1, *, padded: bool = True) -> list[nn.Module]:
    """A convolution that keeps the image's size where `padded` and stride 1, with norm and activation."""
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (sides[0] // 2, sides[1] // 2) if padded else (0, 0)
    convolution = nn.Conv2d(inputs, outputs, sides, stride=stride, padding=padding, bias=False)
    nn.init.kaiming_normal_(convolution.weight, mode="fan_out", nonlinearity="relu")
    return [convolution, nn.BatchNorm2d(outputs, eps=1e-3), nn.ReLU()]
