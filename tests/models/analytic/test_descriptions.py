"""Networks as plain data: there and back, the published definitions, and what is wrong with a wrong one."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from optimus_models.analytic import count
from optimus_models.analytic.description import FORMAT, KINDS, network_from_description, network_from_paleo
from optimus_models.analytic.layers import InvalidNetwork, Network
from optimus_models.analytic.networks import CIFAR, NETWORKS, resnet


def description_of(network: Network) -> dict[str, Any]:
    """The inverse of `network_from_description`."""
    rows, names = [], {kind: name for name, kind in KINDS.items()}
    for layer in network:
        values = {one.name: getattr(layer, one.name) for one in fields(layer)}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        rows.append({"kind": names[type(layer)], **plain})
    return {"format": FORMAT, "name": network.name, "layers": rows}


@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_a_network_survives_being_written_down(name: str) -> None:
    network = NETWORKS[name]()
    again = network_from_description(json.loads(json.dumps(description_of(network))))
    assert again == network
    assert count(again) == count(network)


def _description(**layer: Any) -> dict[str, Any]:
    first = {"name": "input", "kind": "input", "parents": [], "shape": [3, 8, 8]}
    return {"format": FORMAT, "name": "net", "layers": [first, {"name": "next", "parents": ["input"], **layer}]}


@pytest.mark.parametrize(
    ("layer", "complaint"),
    [
        ({"kind": "lstm"}, "layer next: unknown kind 'lstm'"),
        ({"kind": "linear", "features": 0.5}, "layer next: features cannot be 0.5"),
        ({"kind": "linear", "width": 3}, "layer next: a linear has no 'width'"),
        ({"kind": "convolution", "kernel": [3]}, r"layer next: kernel cannot be \[3\]"),
        ({"kind": "convolution", "padding": "some"}, "layer next: padding cannot be 'some'"),
        ({"kind": "elementwise", "parents": "input"}, "layer next: parents cannot be 'input'"),
        ({"kind": "elementwise", "parents": ["nobody"]}, "layer next: no layer 'nobody' before it"),
    ],
)
def test_a_wrong_layer_is_named(layer: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InvalidNetwork, match=complaint):
        network_from_description(_description(**layer))


@pytest.mark.parametrize("value", [{}, {"format": FORMAT}, {"format": FORMAT, "layers": []}, {"format": "other/1"}])
def test_what_is_no_description_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidNetwork):
        network_from_description(value)


def test_counted_layers_cost_what_they_say() -> None:
    cost = count(network_from_description(_description(kind="counted", shape=[5], parameters=7, multiply_adds=11)))
    assert (cost.parameters, cost.multiply_adds) == (7, 11)


def test_a_smaller_image_costs_less_and_has_the_same_parameters() -> None:
    large, small = count(resnet(18, 10)), count(resnet(18, 10, CIFAR))
    assert small.parameters == large.parameters
    assert small.multiply_adds < large.multiply_adds / 40


# --- the definitions that were published with Paleo ------------------------------------------------------------------

PALEO = {
    "data": {"type": "Input", "parents": [], "tensor": [4, 8, 8, 3]},
    "conv": {
        "type": "Convolution",
        "parents": ["data"],
        "filter": [3, 3, 3, 16],
        "strides": [1, 2, 2, 1],
        "padding": "SAME",
        "normalizer_fn": "batch_norm",
    },
    "mixed": {
        "type": "Block",
        "parents": ["conv"],
        "endpoint": "concat",
        "layers": {
            "a": {"type": "Pooling", "parents": [], "ksize": [1, 2, 2, 1], "strides": [1, 1, 1, 1], "padding": "SAME"},
            "b": {
                "type": "Convolution",
                "parents": [],
                "filter": [1, 1, 16, 4],
                "strides": [1, 1, 1, 1],
                "padding": "SAME",
            },
            "concat": {"type": "Concatenate", "parents": ["a", "b"], "dim": 3},
        },
    },
    "softmax": {"type": "Softmax", "parents": ["mixed/concat"]},
}


def test_blocks_and_norms_of_a_paleo_definition() -> None:
    network = network_from_paleo({"name": "toy", "layers": PALEO})
    assert network.shapes["mixed"] == (20, 4, 4)
    cost = count(network)
    assert cost.parameters == 9 * 3 * 16 + 16 + 16 * 4 + 4
    assert cost.multiply_adds == (9 * 3 * 16 + 16 * 4) * 16


@pytest.mark.parametrize(
    "value", [{}, {"layers": {"x": {}}}, {"layers": {"x": {"type": "ModelParallel"}}}, {"layers": 3}]
)
def test_what_paleo_did_not_publish_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(InvalidNetwork):
        network_from_paleo(value)


@pytest.mark.parametrize(
    ("file", "parameters", "billions"),
    [
        ("vgg16.json", 138_357_544, 15.47),
        ("inception_v3.json", 23_834_568, 5.71),
        # Valid padding in its first convolution: 54x54, not 55x55, and so on; layer by layer with pencil and paper.
        ("alex_v2.json", 50_303_912, 0.7366),
        ("overfeat.json", 145_700_000, None),
        ("nin.json", 7_590_000, None),
    ],
)
def test_published_definitions_cost_what_was_published(file: str, parameters: int, billions: float | None) -> None:
    folder = os.environ.get("OPTIMUS_DATA")
    if not folder:
        pytest.skip("OPTIMUS_DATA does not name the folder with paleo/nets")
    cost = count(network_from_paleo(json.loads((Path(folder) / "paleo" / "nets" / file).read_text())))
    assert cost.parameters == pytest.approx(parameters, rel=0.01)
    if billions is not None:
        assert cost.multiply_adds / 1e9 == pytest.approx(billions, rel=0.03)
