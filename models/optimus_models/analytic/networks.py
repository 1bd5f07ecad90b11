"""Networks that everybody knows, as layer descriptions. Their counts equal the published ones (see the tests).

References: Krizhevsky 2014 (AlexNet, one column); Simonyan & Zisserman 2015 (VGG); He et al. 2016 (ResNet; the stride
sits in the 3x3 convolution of a bottleneck, as in every present implementation); Szegedy et al. 2016 (Inception-v3 for
299x299 images, without the auxiliary classifier, which is dropped after training).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from optimus_models.analytic.layers import Builder, Network, Pair, Shape

_Step = tuple[int, int | Pair]
"""Channels and kernel of one convolution with batch norm."""


def inception_v3(classes: int = 1000) -> Network:
    net = Builder("inception-v3", (3, 299, 299))
    net.convolution_norm(32, 3, stride=2, padding="valid")
    net.convolution_norm(32, 3, padding="valid")
    net.convolution_norm(64, 3)
    net.pool(3, stride=2)
    net.convolution_norm(80, 1, padding="valid")
    net.convolution_norm(192, 3, padding="valid")
    net.pool(3, stride=2)
    for pooled in (32, 64, 64):
        _mixed(net, [(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], pooled=pooled)
    _reduce(net, [(384, 3)], [(64, 1), (96, 3), (96, 3)])
    for c in (128, 160, 160, 192):
        across: list[_Step] = [(c, 1), (c, (1, 7)), (192, (7, 1))]
        twice: list[_Step] = [(c, 1), (c, (7, 1)), (c, (1, 7)), (c, (7, 1)), (192, (1, 7))]
        _mixed(net, [(192, 1)], across, twice, pooled=192)
    _reduce(net, [(192, 1), (320, 3)], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3)])
    for _ in range(2):
        _widest(net)
    net.global_pool()
    net.linear(classes)
    return net.network()


def _branch(net: Builder, entry: str, steps: list[_Step]) -> str:
    name = entry
    for channels, kernel in steps:
        name = net.convolution_norm(channels, kernel, on=name)
    return name


def _pooled(net: Builder, entry: str, channels: int) -> str:
    return net.convolution_norm(channels, 1, on=net.pool(3, stride=1, padding="same", on=entry))


def _mixed(net: Builder, *branches: list[_Step], pooled: int) -> None:
    entry = net.newest
    ends = [_branch(net, entry, steps) for steps in branches]
    net.concatenate(*ends, _pooled(net, entry, pooled))


def _reduce(net: Builder, *branches: list[_Step]) -> None:
    """Halves the image: the last convolution of each branch and a pooling have stride 2."""
    entry = net.newest
    ends = []
    for steps in branches:
        before = _branch(net, entry, steps[:-1])
        channels, kernel = steps[-1]
        ends.append(net.convolution_norm(channels, kernel, stride=2, padding="valid", on=before))
    net.concatenate(*ends, net.pool(3, stride=2, on=entry))


def _widest(net: Builder) -> None:
    """The blocks at 8x8, whose branches fork once more."""
    entry = net.newest
    ends = [_branch(net, entry, [(320, 1)])]
    for steps in ([(384, 1)], [(448, 1), (384, 3)]):
        fork = _branch(net, entry, list(steps))
        ends += [_branch(net, fork, [(384, (1, 3))]), _branch(net, fork, [(384, (3, 1))])]
    net.concatenate(*ends, _pooled(net, entry, 192))


IMAGENET = (3, 224, 224)
CIFAR = (3, 32, 32)


def alexnet(classes: int = 1000) -> Network:
    net = Builder("alexnet", IMAGENET)
    net.convolution(64, 11, stride=4, padding=2)
    net.activation()
    net.pool(3, stride=2)
    net.convolution(192, 5)
    net.activation()
    net.pool(3, stride=2)
    for channels in (384, 256, 256):
        net.convolution(channels, 3)
        net.activation()
    net.pool(3, stride=2)
    return _classifier(net, classes)


_VGG_REPEATS = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(depth: int, classes: int = 1000) -> Network:
    """Depth 16 or 19, without batch norm."""
    net = Builder(f"vgg-{depth}", IMAGENET)
    for channels, repeats in zip((64, 128, 256, 512, 512), _VGG_REPEATS[depth], strict=True):
        for _ in range(repeats):
            net.convolution(channels, 3)
            net.activation()
        net.pool(2, stride=2)
    return _classifier(net, classes)


def _classifier(net: Builder, classes: int) -> Network:
    net.linear(4096, activate=True)
    net.linear(4096, activate=True)
    net.linear(classes)
    return net.network()


_RESNET_REPEATS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}


def resnet(depth: int, classes: int = 1000, image: Shape = IMAGENET) -> Network:
    """Depth 18 or 34 (basic blocks) or 50 (bottlenecks); the published one is for 224x224 images."""
    net = Builder(f"resnet-{depth}", image)
    net.convolution_norm(64, 7, stride=2)
    net.pool(3, stride=2, padding=1)
    width_in = 64
    for stage, repeats in enumerate(_RESNET_REPEATS[depth]):
        width = 64 * 2**stage
        for block in range(repeats):
            stride = 2 if stage > 0 and block == 0 else 1
            width_in = (_bottleneck if depth >= 50 else _basic_block)(net, width_in, width, stride)
    net.global_pool()
    net.linear(classes)
    return net.network()


def _basic_block(net: Builder, width_in: int, width: int, stride: int) -> int:
    entry = net.newest
    net.convolution_norm(width, 3, stride=stride)
    body = net.convolution_norm(width, 3, activate=False)
    return _join(net, entry, body, width_in, width, stride)


def _bottleneck(net: Builder, width_in: int, width: int, stride: int) -> int:
    entry = net.newest
    net.convolution_norm(width, 1)
    net.convolution_norm(width, 3, stride=stride)
    body = net.convolution_norm(4 * width, 1, activate=False)
    return _join(net, entry, body, width_in, 4 * width, stride)


def _join(net: Builder, entry: str, body: str, width_in: int, width: int, stride: int) -> int:
    """Add the shortcut, through a 1x1 convolution where the shape changes."""
    if stride != 1 or width_in != width:
        entry = net.convolution_norm(width, 1, stride=stride, activate=False, on=entry)
    net.add(body, entry)
    return width


def cifar_resnet(depth: int, classes: int = 10) -> Network:
    """Depth 6n + 2 (20, 32, 44, 56, 110) for 32x32 images.

    Its shortcuts have no parameters (option A: subsampled and padded with zeros); as they cost nothing either, a block
    that changes the shape is described without one.
    """
    if (depth - 2) % 6:
        raise ValueError(f"depth {depth}: a CIFAR ResNet has 6n + 2 layers")
    net = Builder(f"cifar-resnet-{depth}", CIFAR)
    net.convolution_norm(16, 3)
    for stage in range(3):
        for block in range((depth - 2) // 6):
            changes_shape = stage > 0 and block == 0
            entry = net.newest
            net.convolution_norm(16 * 2**stage, 3, stride=2 if changes_shape else 1)
            body = net.convolution_norm(16 * 2**stage, 3, activate=False)
            if changes_shape:
                net.activation()
            else:
                net.add(body, entry)
    net.global_pool()
    net.linear(classes)
    return net.network()


NETWORKS: Mapping[str, Callable[[], Network]] = MappingProxyType(
    {
        "alexnet": alexnet,
        "inception-v3": inception_v3,
        **{f"vgg-{depth}": partial(vgg, depth) for depth in _VGG_REPEATS},
        **{f"resnet-{depth}": partial(resnet, depth) for depth in _RESNET_REPEATS},
        **{f"cifar-resnet-{depth}": partial(cifar_resnet, depth) for depth in (20, 32, 44, 56, 110)},
    }
)
"""By name."""
