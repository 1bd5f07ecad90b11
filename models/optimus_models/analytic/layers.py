"""A torch-free description of a network: layers by name, each with its parents, and the shapes that follow.

Shapes are of one example: `(channels, height, width)` for images, `(features,)` or `(length, features)` otherwise. A
`Builder` writes a network down layer after layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

Shape = tuple[int, ...]
Pair = tuple[int, int]
Padding = Literal["same", "valid"] | Pair


class InvalidNetwork(ValueError):
    """A layer that cannot be computed: unknown parent, wrong shape, impossible size. The message names the layer."""


@dataclass(frozen=True, slots=True)
class Layer:
    """Base of all layers."""

    name: str
    parents: tuple[str, ...]

    def output(self, inputs: tuple[Shape, ...]) -> Shape:
        """The shape that comes out for the parents' shapes; the first parent's unless a layer says otherwise."""
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Input(Layer):
    shape: Shape = ()

    def output(self, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - an input has no parents
        return self.shape


@dataclass(frozen=True, slots=True)
class Window(Layer):
    """What convolutions and poolings share: a window that moves over the image."""

    kernel: Pair = (1, 1)
    stride: Pair = (1, 1)
    padding: Padding = "same"

    def spatial(self, shape: Shape) -> Pair:
        """(height, width) after the window has moved over an image of `shape`."""
        if len(shape) != 3:
            raise InvalidNetwork(f"layer {self.name}: needs an image (channels, height, width), got {shape}")
        height, width = (self._moved(axis, size) for axis, size in enumerate(shape[1:]))
        return height, width

    def _moved(self, axis: int, size: int) -> int:
        kernel, stride = self.kernel[axis], self.stride[axis]
        if self.padding == "same":
            return -(-size // stride)
        pad = 0 if self.padding == "valid" else self.padding[axis]
        moved = (size + 2 * pad - kernel) // stride + 1
        if moved < 1:
            raise InvalidNetwork(f"layer {self.name}: a window of {kernel} does not fit in {size} + 2x{pad}")
        return moved


@dataclass(frozen=True, slots=True)
class Convolution(Window):
    channels: int = 1
    bias: bool = True
    groups: int = 1

    def output(self, inputs: tuple[Shape, ...]) -> Shape:
        return (self.channels, *self.spatial(inputs[0]))


@dataclass(frozen=True, slots=True)
class Pooling(Window):
    def output(self, inputs: tuple[Shape, ...]) -> Shape:
        return (inputs[0][0], *self.spatial(inputs[0]))


@dataclass(frozen=True, slots=True)
class GlobalPooling(Layer):
    """Mean over height and width."""

    def output(self, inputs: tuple[Shape, ...]) -> Shape:
        return (inputs[0][0],)


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """Fully connected over all that comes in (images are flattened)."""

    features: int = 1
    bias: bool = True

    def output(self, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - does not depend on them
        return (self.features,)


@dataclass(frozen=True, slots=True)
class BatchNorm(Layer):
    """One scale and one shift per channel."""

    scale: bool = True


@dataclass(frozen=True, slots=True)
class Elementwise(Layer):
    """Activation, dropout or softmax: no parameters, one operation per element."""


@dataclass(frozen=True, slots=True)
class Add(Layer):
    """Sum of equal shapes (a residual connection)."""

    def output(self, inputs: tuple[Shape, ...]) -> Shape:
        if len(set(inputs)) != 1:
            raise InvalidNetwork(f"layer {self.name}: adds different shapes {inputs}")
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Concatenate(Layer):
    """Channels of all parents, one after the other."""

    def output(self, inputs: tuple[Shape, ...]) -> Shape:
        if len({shape[1:] for shape in inputs}) != 1:
            raise InvalidNetwork(f"layer {self.name}: concatenates images of different sizes {inputs}")
        return (sum(shape[0] for shape in inputs), *inputs[0][1:])


@dataclass(frozen=True, slots=True)
class Counted(Layer):
    """Anything else, with the costs that its description gives (recurrence, attention, embedding)."""

    shape: Shape = ()
    """Of what comes out."""
    parameters: int = 0
    multiply_adds: int = 0
    """Of one example's forward pass."""

    def output(self, inputs: tuple[Shape, ...]) -> Shape:  # noqa: ARG002 - it says so itself
        return self.shape


@dataclass(frozen=True, slots=True)
class Network:
    """Layers in an order in which parents come first."""

    name: str
    layers: tuple[Layer, ...]
    shapes: Mapping[str, Shape] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        shapes: dict[str, Shape] = {}
        for layer in self.layers:
            unknown = [parent for parent in layer.parents if parent not in shapes]
            if unknown:
                raise InvalidNetwork(f"layer {layer.name}: no layer {unknown[0]!r} before it")
            shapes[layer.name] = layer.output(tuple(shapes[parent] for parent in layer.parents))
        object.__setattr__(self, "shapes", shapes)

    def inputs_of(self, layer: Layer) -> tuple[Shape, ...]:
        return tuple(self.shapes[parent] for parent in layer.parents)

    def __iter__(self) -> Iterator[Layer]:
        return iter(self.layers)


def pair(value: int | Pair) -> Pair:
    """A height and a width; one number stands for both."""
    return (value, value) if isinstance(value, int) else value


class Builder:
    """Collects layers; `network()` gives the finished value."""

    def __init__(self, name: str, input_shape: Shape) -> None:
        self._name = name
        self._layers: list[Layer] = [Input("input", (), input_shape)]

    @property
    def newest(self) -> str:
        return self._layers[-1].name

    def network(self) -> Network:
        return Network(self._name, tuple(self._layers))

    def _next(self, kind: str, on: str | None) -> tuple[str, tuple[str, ...]]:
        return f"{kind}{len(self._layers)}", (on or self.newest,)

    def _add(self, layer: Layer) -> str:
        self._layers.append(layer)
        return layer.name

    def convolution(
        self,
        channels: int,
        kernel: int | Pair,
        *,
        stride: int = 1,
        padding: Padding | int = "same",
        bias: bool = True,
        on: str | None = None,
    ) -> str:
        pad = pair(padding) if isinstance(padding, int) else padding
        name, parents = self._next("conv", on)
        return self._add(Convolution(name, parents, pair(kernel), pair(stride), pad, channels, bias))

    def convolution_norm(
        self,
        channels: int,
        kernel: int | Pair,
        *,
        stride: int = 1,
        padding: Padding | int = "same",
        activate: bool = True,
        on: str | None = None,
    ) -> str:
        """Convolution without bias, batch norm and, unless told otherwise, an activation."""
        self.convolution(channels, kernel, stride=stride, padding=padding, bias=False, on=on)
        self._add(BatchNorm(*self._next("norm", None)))
        return self.activation() if activate else self.newest

    def pool(self, kernel: int, *, stride: int, padding: Padding | int = "valid", on: str | None = None) -> str:
        pad = pair(padding) if isinstance(padding, int) else padding
        name, parents = self._next("pool", on)
        return self._add(Pooling(name, parents, pair(kernel), pair(stride), pad))

    def global_pool(self) -> str:
        return self._add(GlobalPooling(*self._next("mean", None)))

    def linear(self, features: int, *, activate: bool = False) -> str:
        self._add(Linear(*self._next("linear", None), features))
        return self.activation() if activate else self.newest

    def activation(self) -> str:
        return self._add(Elementwise(*self._next("activation", None)))

    def add(self, left: str, right: str) -> str:
        self._add(Add(f"add{len(self._layers)}", (left, right)))
        return self.activation()

    def concatenate(self, *parents: str) -> str:
        return self._add(Concatenate(f"concatenate{len(self._layers)}", parents))
