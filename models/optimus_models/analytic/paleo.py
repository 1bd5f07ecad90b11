"""Reads the network definitions that were published with Paleo (parsed JSON): layers by name, channels last.

Fully connected layers are convolutions over the whole image there, and blocks nest. Layers split over devices
(`ModelParallel`) are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optimus_models.analytic.layers import (
    BatchNorm,
    Concatenate,
    Convolution,
    Elementwise,
    Input,
    InvalidNetwork,
    Layer,
    Network,
    Padding,
    Pair,
    Pooling,
)


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
            yield from _layer(prefix + name, row, parents)


def _layer(name: str, row: Mapping[str, Any], parents: tuple[str, ...]) -> Iterator[Layer]:
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
