"""Convolutional networks for images (n, 3, height, width), with logits (n, n_classes), and all of them by name.

Norms are batch norms: a step's statistics are those of one micro-batch, which is the same whatever the number of
workers; the running ones are buffers, averaged over the micro-batches of a step.

References: Krizhevsky 2014 (AlexNet on one column); Simonyan & Zisserman, ICLR 2015 (VGG, without norms); He et al.,
CVPR 2016 (residual networks: `resnet` for ImageNet, `cifar_resnet` for CIFAR-10); Huang et al., ECCV 2016 (stochastic
depth); Goyal et al., 2017 (the last scale of each block starts at zero); Szegedy et al., CVPR 2016 (Inception-v3 for
299 pixels, works from 75 on; without the auxiliary classifier, which is dropped after training anyway).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.errors import TaskError

# --- without shortcuts -----------------------------------------------------------------------------------------------

_VGG_REPEATS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_VGG_CHANNELS = (64, 128, 256, 512, 512)
_HIDDEN = 4096


def alexnet(n_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """For images from 63 pixels on; published for 224."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 11, stride=4, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    layers += [nn.Conv2d(64, 192, 5, padding=2), nn.ReLU(), nn.MaxPool2d(3, 2)]
    for inputs, outputs in ((192, 384), (384, 256), (256, 256)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.MaxPool2d(3, 2), *_classifier(256, 6, n_classes, dropout))


def vgg(depth: int, n_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """16 or 19 layers, for images from 32 pixels on; published for 224. Raises `TaskError` for another depth."""
    if depth not in _VGG_REPEATS:
        raise TaskError(f"depth must be 16 or 19, not {depth}")
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, repeats in zip(_VGG_CHANNELS, _VGG_REPEATS[depth], strict=True):
        for _ in range(repeats):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    network = nn.Sequential(*layers, *_classifier(inputs, 7, n_classes, dropout))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def _classifier(channels: int, side: int, n_classes: int, dropout: float) -> list[nn.Module]:
    """Two hidden layers on `channels` maps of `side` × `side` cells, over which any image is spread."""
    hidden = [nn.Dropout(dropout), nn.Linear(channels * side**2, _HIDDEN), nn.ReLU()]
    hidden += [nn.Dropout(dropout), nn.Linear(_HIDDEN, _HIDDEN), nn.ReLU()]
    return [nn.AdaptiveAvgPool2d(side), nn.Flatten(), *hidden, nn.Linear(_HIDDEN, n_classes)]


# --- residual networks -----------------------------------------------------------------------------------------------

Stem = Literal["imagenet", "cifar"]
_REPEATS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
_BOTTLENECK_FROM = 50
_EXPANSION = 4


@dataclass(frozen=True, slots=True)
class Options:
    """What can be varied without changing the number of parameters."""

    zero_gamma: bool = False
    """Start each block as its shortcut: the scale of its last norm is zero."""
    stochastic_depth: float = 0.0
    """Probability of dropping the last block's branch for an example; it grows linearly from the first block on."""

    def __post_init__(self) -> None:
        if not 0 <= self.stochastic_depth < 1:
            raise TaskError(f"stochastic_depth must be from 0 to below 1, not {self.stochastic_depth}")


PLAIN = Options()


def resnet(depth: int, n_classes: int = 1000, stem: Stem = "imagenet", options: Options = PLAIN) -> nn.Module:
    """18, 34 (basic blocks) or 50 layers (bottlenecks).

    `stem`: "imagenet" reduces the image by four before the first block, "cifar" keeps its size (for 32 × 32 pixels).
    Raises `TaskError` for another depth or stem.
    """
    if depth not in _REPEATS:
        raise TaskError(f"depth must be one of {', '.join(map(str, _REPEATS))}, not {depth}")
    if stem not in ("imagenet", "cifar"):
        raise TaskError(f"stem must be imagenet or cifar, not {stem!r}")
    is_bottleneck = depth >= _BOTTLENECK_FROM
    stages = tuple((64 * 2**stage, repeats) for stage, repeats in enumerate(_REPEATS[depth]))
    blocks, width = _blocks(64, stages, bottleneck if is_bottleneck else basic, projection, options)
    return _initialised(nn.Sequential(*_stem(stem), *blocks, *_head(width, n_classes)), options)


def cifar_resnet(depth: int, n_classes: int = 10, options: Options = PLAIN) -> nn.Module:
    """20, 32, 44, 56 or 110 layers, or any other 6n + 2; shortcuts without parameters (option A of the paper)."""
    if depth < 8 or (depth - 2) % 6:
        raise TaskError(f"depth must be 6n + 2 (20, 32, 44, 56, 110), not {depth}")
    repeats = (depth - 2) // 6
    blocks, width = _blocks(16, ((16, repeats), (32, repeats), (64, repeats)), basic, Padded, options)
    stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    return _initialised(nn.Sequential(*stem, *blocks, *_head(width, n_classes)), options)


class Residual(nn.Module):
    """relu(branch(x) + shortcut(x)); while training, an example's branch is left out with probability `drop`.

    What is kept counts 1/(1 - drop), so nothing has to be scaled afterwards.
    """

    def __init__(self, branch: nn.Module, shortcut: nn.Module, drop: float) -> None:
        super().__init__()
        self.branch, self.shortcut, self.drop = branch, shortcut, drop

    def forward(self, images: Tensor) -> Tensor:
        branch = self.branch(images)
        if self.training and self.drop > 0:
            kept = torch.rand(len(images), 1, 1, 1, device=images.device) >= self.drop
            branch = branch * (kept.to(branch.dtype) / (1 - self.drop))
        return functional.relu(branch + self.shortcut(images))


class Padded(nn.Module):
    """A shortcut without parameters: every other pixel, and channels of zeros on both sides."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, images: Tensor) -> Tensor:
        fewer = images[:, :, :: self.stride, :: self.stride]
        return functional.pad(fewer, (0, 0, 0, 0, self.padding, self.padding))


def projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    """A shortcut that learns: a 1 × 1 convolution with its norm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def basic(inputs: int, width: int, stride: int) -> tuple[nn.Sequential, int]:
    """The branch of two 3 × 3 convolutions, and its number of output channels."""
    first, second = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.Conv2d(width, width, 3, 1, 1, bias=False)
    return nn.Sequential(first, nn.BatchNorm2d(width), nn.ReLU(), second, nn.BatchNorm2d(width)), width


def bottleneck(inputs: int, width: int, stride: int) -> tuple[nn.Sequential, int]:
    """The branch of a 1 × 1, a 3 × 3 (with the stride) and a widening 1 × 1 convolution, and its output channels."""
    outputs = _EXPANSION * width
    narrow = [nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    middle = [nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*narrow, *middle, nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)), outputs


def _blocks(
    width_in: int,
    stages: tuple[tuple[int, int], ...],
    make_branch: Callable[[int, int, int], tuple[nn.Sequential, int]],
    make_shortcut: Callable[[int, int, int], nn.Module],
    options: Options,
) -> tuple[list[nn.Module], int]:
    """All blocks, stage after stage (width, repeats), and the number of channels that the last one gives."""
    blocks: list[nn.Module] = []
    n_blocks = sum(repeats for _, repeats in stages)
    for stage, (width, repeats) in enumerate(stages):
        for stride in _strides(stage, repeats):
            branch, width_out = make_branch(width_in, width, stride)
            is_same_shape = stride == 1 and width_in == width_out
            shortcut = nn.Identity() if is_same_shape else make_shortcut(width_in, width_out, stride)
            drop = options.stochastic_depth * (len(blocks) + 1) / n_blocks
            blocks.append(Residual(branch, shortcut, drop))
            width_in = width_out
    return blocks, width_in


def _strides(stage: int, repeats: int) -> Iterator[int]:
    """Every stage but the first halves the image in its first block."""
    yield 1 if stage == 0 else 2
    yield from [1] * (repeats - 1)


def _stem(stem: Stem) -> list[nn.Module]:
    if stem == "cifar":
        return [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    convolution = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
    return [convolution, nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)]


def _head(width: int, n_classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, n_classes)]


def _initialised(network: nn.Sequential, options: Options) -> nn.Module:
    """He initialisation of the convolutions (ICCV 2015)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, Residual) and options.zero_gamma:
            last = module.branch[-1]  # type: ignore[index]
            nn.init.zeros_(last.weight)
    return network


# --- Inception-v3 ----------------------------------------------------------------------------------------------------

Kernel = int | tuple[int, int]
Step = tuple[int, Kernel]
"""Output channels and kernel of one convolution."""


def inception_v3(n_classes: int = 1000, dropout: float = 0.5) -> nn.Module:
    """The network; logits (n, n_classes)."""
    stem = [*_conv(3, 32, 3, stride=2, padded=False), *_conv(32, 32, 3, padded=False), *_conv(32, 64, 3)]
    stem += [nn.MaxPool2d(3, 2), *_conv(64, 80, 1), *_conv(80, 192, 3, padded=False), nn.MaxPool2d(3, 2)]
    blocks, width = _inception_blocks(192)
    head = [nn.AdaptiveAvgPool2d(1), nn.Dropout(dropout), nn.Flatten(), nn.Linear(width, n_classes)]
    return nn.Sequential(*stem, *blocks, *head)


class Branches(nn.Module):
    """The outputs of all branches side by side, along the channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], dim=1)


def _inception_blocks(width: int) -> tuple[list[nn.Module], int]:
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


# --- by name ---------------------------------------------------------------------------------------------------------

BuildImageNetwork = Callable[[int], nn.Module]
"""From the number of classes to the network."""

IMAGE_NETWORKS: Mapping[str, BuildImageNetwork] = MappingProxyType(
    {
        "alexnet": alexnet,
        "inception-v3": inception_v3,
        **{f"vgg-{depth}": partial(vgg, depth) for depth in (16, 19)},
        **{f"resnet-{depth}": partial(resnet, depth) for depth in (18, 34, 50)},
        **{f"resnet-{depth}-cifar": partial(resnet, depth, stem="cifar") for depth in (18, 34, 50)},
        **{f"cifar-resnet-{depth}": partial(cifar_resnet, depth) for depth in (20, 32, 44, 56, 110)},
    }
)


def image_network(name: str) -> BuildImageNetwork:
    """The network of this name. Raises `TaskError` with all names when there is none."""
    if name not in IMAGE_NETWORKS:
        raise TaskError(f"there is no network {name!r}; there are {', '.join(IMAGE_NETWORKS)}")
    return IMAGE_NETWORKS[name]
