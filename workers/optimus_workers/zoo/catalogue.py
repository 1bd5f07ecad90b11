"""The image networks of the zoo by name, for tasks that take any of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from torch import nn

from optimus_workers.errors import TaskError
from optimus_workers.zoo.inception import inception_v3
from optimus_workers.zoo.plain import alexnet, vgg
from optimus_workers.zoo.residual import cifar_resnet, resnet

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
