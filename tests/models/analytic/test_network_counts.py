"""Parameters and multiply-adds equal the published counts."""

from __future__ import annotations

import pytest

from optimus_models.analytic import count
from optimus_models.analytic.layers import Builder, InvalidNetwork
from optimus_models.analytic.networks import NETWORKS, vgg

# name, parameters (exact), billions of multiply-adds for one image
PUBLISHED = [
    ("alexnet", 61_100_840, 0.714),
    ("vgg-16", 138_357_544, 15.47),
    ("vgg-19", 143_667_240, 19.63),
    ("inception-v3", 23_834_568, 5.71),
    ("resnet-18", 11_689_512, 1.814),
    ("resnet-34", 21_797_672, 3.664),
    ("resnet-50", 25_557_032, 4.089),
    ("cifar-resnet-20", 269_722, 0.04055),
    ("cifar-resnet-32", 464_154, 0.06886),
    ("cifar-resnet-44", 658_586, 0.09717),
    ("cifar-resnet-56", 853_018, 0.12549),
    ("cifar-resnet-110", 1_727_962, 0.25289),
]


@pytest.mark.parametrize(("name", "parameters", "billions"), PUBLISHED)
def test_counts_are_the_published_ones(name: str, parameters: int, billions: float) -> None:
    cost = count(NETWORKS[name]())
    assert cost.parameters == parameters
    assert cost.multiply_adds / 1e9 == pytest.approx(billions, rel=0.01)


def test_every_network_is_checked() -> None:
    assert {name for name, *_ in PUBLISHED} == set(NETWORKS)


def test_nearly_all_of_vgg_19_is_convolution() -> None:
    assert count(vgg(19)).share("Convolution") == pytest.approx(0.99, abs=0.005)


def test_a_window_that_does_not_fit_names_the_layer() -> None:
    net = Builder("tiny", (3, 4, 4))
    net.convolution(8, 7, padding="valid")
    with pytest.raises(InvalidNetwork, match="conv1: a window of 7 does not fit in 4"):
        net.network()


def test_adding_different_shapes_names_the_layer() -> None:
    net = Builder("tiny", (3, 8, 8))
    left = net.convolution(8, 3)
    right = net.convolution(8, 3, stride=2, on="input")
    net.add(left, right)
    with pytest.raises(InvalidNetwork, match="adds different shapes"):
        net.network()
