"""Inception-v3 (Szegedy et al. 2016) for 299x299 images, without the auxiliary classifier (dropped after training)."""

from __future__ import annotations

from optimus_models.analytic.builder import Builder
from optimus_models.analytic.layers import Network, Pair

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
