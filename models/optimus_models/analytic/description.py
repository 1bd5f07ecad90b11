"""Networks as plain data: what a worker writes about a traced torch module, and what the arithmetic reads.

    {"format": "optimus-network/1", "name": "net", "layers": [
        {"name": "input", "kind": "input", "parents": [], "shape": [3, 32, 32]},
        {"name": "conv1", "kind": "convolution", "parents": ["input"], "channels": 16, "kernel": [3, 3],
         "stride": [1, 1], "padding": [1, 1], "bias": false, "groups": 1}, ...]}

Kinds and their fields are the layers of `layers` in snake case; lists stand for pairs and shapes, shapes are of one
example. Fields that are left out have the layer's default.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any

from optimus_models.analytic.cost import NetworkCost, count
from optimus_models.analytic.layers import (
    Add,
    BatchNorm,
    Concatenate,
    Convolution,
    Counted,
    Elementwise,
    GlobalPooling,
    Input,
    InvalidNetwork,
    Layer,
    Linear,
    Network,
    Padding,
    Pair,
    Pooling,
)

FORMAT = "optimus-network/1"
LARGEST = 10**12
"""Of all numbers in a description: no layer has more of anything."""
MOST_AXES = 8
"""Of one shape."""

_TYPES: tuple[type[Layer], ...] = (
    Add,
    BatchNorm,
    Concatenate,
    Convolution,
    Counted,
    Elementwise,
    GlobalPooling,
    Input,
    Linear,
    Pooling,
)


def _snake(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


KINDS: Mapping[str, type[Layer]] = MappingProxyType({_snake(kind.__name__): kind for kind in _TYPES})
"""By their name in a description."""

_PAIRS = {"kernel", "stride"}
_WHOLE = {"channels", "groups", "features", "parameters", "multiply_adds"}


def network_from_description(description: Mapping[str, Any]) -> Network:
    """Read the parsed JSON. Raises `InvalidNetwork`, which names the layer and the field."""
    if description.get("format") != FORMAT:
        raise InvalidNetwork(f"format: expected {FORMAT!r}, found {description.get('format')!r}")
    layers = description.get("layers")
    if not isinstance(layers, list) or not layers:
        raise InvalidNetwork("layers: expected a list with at least one layer")
    rows = tuple(_layer(index, row) for index, row in enumerate(layers))
    orphan = next((layer for layer in rows if not layer.parents and not isinstance(layer, Input | Counted)), None)
    if orphan is not None:
        raise InvalidNetwork(f"layer {orphan.name}: has no parents")
    try:
        return Network(str(description.get("name", "network")), rows)
    except IndexError as error:
        raise InvalidNetwork("a layer does not go with the shape of what comes in") from error


def cost_of_description(description: Mapping[str, Any]) -> NetworkCost:
    """What the described network costs. Raises `InvalidNetwork`, also for what only counting shows to be impossible."""
    network = network_from_description(description)
    try:
        return count(network)
    except (IndexError, ZeroDivisionError) as error:
        raise InvalidNetwork(f"{network.name}: a layer does not go with the shape of what comes in") from error


def _layer(index: int, row: object) -> Layer:
    if not isinstance(row, Mapping) or not isinstance(row.get("name"), str):
        raise InvalidNetwork(f"layer {index}: expected an object with a name")
    name, kind = row["name"], KINDS.get(str(row.get("kind")))
    if kind is None:
        raise InvalidNetwork(f"layer {name}: unknown kind {row.get('kind')!r} (known: {', '.join(KINDS)})")
    allowed = {one.name for one in fields(kind)}
    unknown = sorted(set(row) - allowed - {"kind"})
    if unknown:
        raise InvalidNetwork(f"layer {name}: a {row['kind']} has no {unknown[0]!r}")
    values = {key: _value(name, key, value) for key, value in row.items() if key not in ("kind", "name")}
    return kind(name, values.pop("parents", ()), **values)


def _value(layer: str, key: str, value: Any) -> Any:
    """`value` as the layer has it. Raises `InvalidNetwork`."""
    if key == "parents" and isinstance(value, list) and all(isinstance(parent, str) for parent in value):
        return tuple(value)
    if key in _WHOLE and _is_whole(value) and value >= 0:
        return value
    if key in ("bias", "scale") and isinstance(value, bool):
        return value
    if key == "padding" and value in ("same", "valid"):
        return value
    if key == "shape" and _are_whole(value, least=1):
        return tuple(value)
    least = 0 if key == "padding" else 1
    if (key in _PAIRS or key == "padding") and _are_whole(value, least) and len(value) == 2:
        return tuple(value)
    raise InvalidNetwork(f"layer {layer}: {key} cannot be {value!r}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value <= LARGEST


def _are_whole(values: object, least: int) -> bool:
    if not isinstance(values, list) or len(values) > MOST_AXES:
        return False
    return all(_is_whole(value) and value >= least for value in values)


# --- the network definitions that were published with Paleo ----------------------------------------------------------
# Fully connected layers are convolutions over the whole image there, and blocks nest. Layers split over devices
# (`ModelParallel`) are not read.


def network_from_paleo(definition: Mapping[str, Any]) -> Network:
    """Raises `InvalidNetwork`, which names the layer."""
    try:
        layers = tuple(_layers(definition["layers"], prefix="", outside=()))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        if isinstance(error, InvalidNetwork):
            raise
        raise InvalidNetwork(f"not a Paleo definition: {type(error).__name__} {error}") from error
    return Network(str(definition.get("name", "network")), layers)


def _layers(rows: Mapping[str, Any], prefix: str, outside: tuple[str, ...]) -> Iterator[Layer]:
    """The layers of one level; those without parents of their own have `outside` as theirs.

    A layer's output goes by its own name, whatever is computed after its arithmetic (norm, activation): the arithmetic
    itself gets a longer name.
    """
    for name, row in rows.items():
        parents = tuple(prefix + parent for parent in row.get("parents", ())) or outside
        if row["type"] == "Block":
            yield from _layers(row["layers"], f"{prefix}{name}/", parents)
            yield Elementwise(prefix + name, (f"{prefix}{name}/{row['endpoint']}",))
        else:
            yield from _paleo_layer(prefix + name, row, parents)


def _paleo_layer(name: str, row: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[Layer]:
    match row["type"]:
        case "Input":
            _, height, width, channels = row["tensor"]
            yield Input(name, (), (channels, height, width))
        case "Convolution":
            yield from _convolution(name, row, parents)
        case "Pooling" | "AvgPool":
            yield Pooling(name, parents, _middle(row["ksize"]), _middle(row["strides"]), _padding(row))
        case "Concatenate":
            yield Concatenate(name, parents)
        case "Dropout" | "Softmax":
            yield Elementwise(name, parents)
        case other:
            raise InvalidNetwork(f"layer {name}: {other} is not read")


def _convolution(name: str, row: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[Layer]:
    """With batch norm instead of a bias where it says so (slim's batch norm shifts, but does not scale)."""
    height, width, _, channels = row["filter"]
    strides, padding = _middle(row["strides"]), _padding(row)
    if row.get("normalizer_fn") == "batch_norm":
        yield Convolution(f"{name}/conv", parents, (height, width), strides, padding, channels, bias=False)
        yield BatchNorm(name, (f"{name}/conv",), scale=False)
    else:
        yield Convolution(name, parents, (height, width), strides, padding, channels)


def _middle(values: list[int]) -> Pair:
    _, height, width, _ = values
    return height, width


def _padding(row: Mapping[str, Any]) -> Padding:
    return "same" if row["padding"] == "SAME" else "valid"
