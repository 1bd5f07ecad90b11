"""The networks have as many parameters as were published."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from optimus_workers.errors import TaskError
from optimus_workers.zoo.image_networks import IMAGE_NETWORKS, Options, Residual, cifar_resnet, image_network, resnet
from optimus_workers.zoo.ranking import TwoTower
from optimus_workers.zoo.text import LstmLanguageModel, Transformer

PUBLISHED_IMAGENET = {
    "alexnet": 61_100_840,
    "vgg-16": 138_357_544,
    "vgg-19": 143_667_240,
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "inception-v3": 23_834_568,
}
PUBLISHED_CIFAR = {20: 269_722, 32: 464_154, 44: 658_586, 56: 853_018, 110: 1_727_962}
SIDES = {"inception-v3": 299} | dict.fromkeys([name for name in IMAGE_NETWORKS if "cifar" in name], 32)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    """Without memory or arithmetic: shapes are all that counts."""
    with torch.device("meta"):
        return build()


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED_IMAGENET)
def test_imagenet_networks(name: str) -> None:
    assert n_parameters(on_meta(lambda: image_network(name)(1000))) == PUBLISHED_IMAGENET[name]


@pytest.mark.parametrize("depth", PUBLISHED_CIFAR)
def test_cifar_resnets(depth: int) -> None:
    assert n_parameters(on_meta(lambda: cifar_resnet(depth))) == PUBLISHED_CIFAR[depth]


@pytest.mark.parametrize("name", IMAGE_NETWORKS)
def test_images_become_logits(name: str) -> None:
    side = SIDES.get(name, 224)
    logits = on_meta(lambda: image_network(name)(7))(torch.zeros(2, 3, side, side, device="meta"))
    assert logits.shape == (2, 7)


def test_language_models() -> None:
    """Zaremba et al. 2014: 20 and 66 million on the Penn Treebank. GPT-2 small: 124 million."""
    assert n_parameters(on_meta(lambda: LstmLanguageModel(10_000, 650))) == 19_780_400
    assert n_parameters(on_meta(lambda: LstmLanguageModel(10_000, 1500))) == 66_034_000
    gpt2 = on_meta(lambda: Transformer(50_257, 1024, width=768, depth=12, heads=12))
    assert n_parameters(gpt2) == 124_439_808
    assert gpt2(torch.zeros(2, 5, dtype=torch.int64, device="meta")).shape == (2, 5, 50_257)


def test_two_towers() -> None:
    """Each tower of Huang et al. 2013: 30,000 trigrams, 300, 300, 128."""
    tower = 30_000 * 300 + 300 + 300 * 300 + 300 + 300 * 128 + 128
    assert n_parameters(on_meta(lambda: TwoTower(30_000))) == 2 * tower


def test_options_change_no_count_but_the_start() -> None:
    torch.manual_seed(0)
    images = torch.randn(4, 3, 32, 32)
    model = cifar_resnet(8, options=Options(zero_gamma=True))
    assert n_parameters(model) == n_parameters(cifar_resnet(8))
    before_blocks = model[:3](images)  # type: ignore[index]
    assert torch.equal(model[3](before_blocks), before_blocks)  # type: ignore[index]


def test_stochastic_depth_drops_branches_of_single_examples_while_training() -> None:
    torch.manual_seed(0)
    model = resnet(18, 10, "cifar", Options(stochastic_depth=0.5))
    last = [module for module in model.modules() if isinstance(module, Residual)][-1]
    assert last.drop == 0.5
    inputs = torch.randn(64, 512, 4, 4)
    dropped = (last(inputs) == last.shortcut(inputs).relu()).flatten(1).all(1)
    assert 16 < int(dropped.sum()) < 48
    last.eval()
    assert not (last(inputs) == last.shortcut(inputs).relu()).flatten(1).all(1).any()


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: resnet(19), "depth must be one of 18, 34, 50"),
        (lambda: resnet(18, stem="other"), "stem"),  # type: ignore[arg-type]
        (lambda: cifar_resnet(21), "6n"),
        (lambda: image_network("resnet-1"), "there are alexnet"),
        (lambda: Options(stochastic_depth=1.0), "stochastic_depth"),
        (lambda: Transformer(10, 4, width=10, heads=3), "multiple of heads"),
    ],
)
def test_wrong_sizes_are_named(build: Callable[[], object], named: str) -> None:
    with pytest.raises(TaskError, match=named):
        build()


def test_later_tokens_do_not_change_earlier_predictions() -> None:
    torch.manual_seed(0)
    tokens = torch.randint(50, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 50
    for model in (Transformer(50, 8, width=16, depth=2).eval(), LstmLanguageModel(50, 16).eval()):
        assert torch.allclose(model(tokens)[:, :5], model(changed)[:, :5], atol=1e-6)
        assert not torch.allclose(model(tokens)[:, 5:], model(changed)[:, 5:])
