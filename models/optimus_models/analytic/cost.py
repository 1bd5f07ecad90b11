"""What each layer of a network costs: parameters, multiply-adds and bytes, for one example."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from optimus_models.analytic.layers import (
    Add,
    BatchNorm,
    Concatenate,
    Convolution,
    Counted,
    Elementwise,
    GlobalPooling,
    Input,
    Layer,
    Linear,
    Network,
    Pooling,
    Shape,
)

BYTES_PER_VALUE = 4
"""float32."""


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer, one example, forward pass."""

    name: str
    kind: str
    parameters: int
    multiply_adds: int
    """Multiplications with an addition (two floating-point operations); published "FLOPs" of networks are these."""
    moved_bytes: int
    """Activations read and written; parameters are counted apart because a batch reads them once."""
    activation_bytes: int
    """Kept for the backward pass."""


@dataclass(frozen=True, slots=True)
class NetworkCost:
    """A whole network, one example, forward pass."""

    name: str
    layers: tuple[LayerCost, ...]

    @property
    def parameters(self) -> int:
        return sum(layer.parameters for layer in self.layers)

    @property
    def multiply_adds(self) -> int:
        return sum(layer.multiply_adds for layer in self.layers)

    @property
    def activation_bytes(self) -> int:
        return sum(layer.activation_bytes for layer in self.layers)

    @property
    def parameter_bytes(self) -> int:
        return self.parameters * BYTES_PER_VALUE

    def share(self, kind: str) -> float:
        """Fraction of all multiply-adds in layers of that kind ("Convolution", "Linear", ...)."""
        total = self.multiply_adds
        mine = sum(layer.multiply_adds for layer in self.layers if layer.kind == kind)
        return mine / total if total else 0.0


def count(network: Network) -> NetworkCost:
    """Count every layer of `network`.

    Only convolutions and fully connected layers are counted as multiply-adds, as published figures do; the others
    cost memory traffic, which is in `moved_bytes`.
    """
    return NetworkCost(network.name, tuple(_count(layer, network) for layer in network))


def _count(layer: Layer, network: Network) -> LayerCost:
    inputs, output = network.inputs_of(layer), network.shapes[layer.name]
    parameters, multiply_adds = _COUNTERS[type(layer)](layer, inputs, output)
    values_in, values_out = sum(prod(shape) for shape in inputs), prod(output)
    return LayerCost(
        name=layer.name,
        kind=type(layer).__name__,
        parameters=parameters,
        multiply_adds=multiply_adds,
        moved_bytes=(values_in + values_out) * BYTES_PER_VALUE,
        activation_bytes=values_out * BYTES_PER_VALUE,
    )


def _convolution(layer: Layer, inputs: tuple[Shape, ...], output: Shape) -> tuple[int, int]:
    assert isinstance(layer, Convolution)
    weights = layer.kernel[0] * layer.kernel[1] * inputs[0][0] // layer.groups * layer.channels
    return weights + layer.channels * layer.bias, weights * output[1] * output[2]


def _linear(layer: Layer, inputs: tuple[Shape, ...], output: Shape) -> tuple[int, int]:
    assert isinstance(layer, Linear)
    weights = prod(inputs[0]) * output[0]
    return weights + output[0] * layer.bias, weights


def _batch_norm(layer: Layer, inputs: tuple[Shape, ...], output: Shape) -> tuple[int, int]:  # noqa: ARG001 - one signature
    assert isinstance(layer, BatchNorm)
    return output[0] * (2 if layer.scale else 1), 0


def _counted(layer: Layer, inputs: tuple[Shape, ...], output: Shape) -> tuple[int, int]:  # noqa: ARG001 - one signature
    assert isinstance(layer, Counted)
    return layer.parameters, layer.multiply_adds


def _free(layer: Layer, inputs: tuple[Shape, ...], output: Shape) -> tuple[int, int]:  # noqa: ARG001 - one signature
    return 0, 0


_Counter = Callable[[Layer, tuple[Shape, ...], Shape], tuple[int, int]]
_COUNTERS: Mapping[type[Layer], _Counter] = MappingProxyType(
    {
        Input: _free,
        Convolution: _convolution,
        Linear: _linear,
        Counted: _counted,
        BatchNorm: _batch_norm,
        Pooling: _free,
        GlobalPooling: _free,
        Elementwise: _free,
        Add: _free,
        Concatenate: _free,
    }
)
