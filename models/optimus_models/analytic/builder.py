"""Write a network down layer after layer. Each method adds layers after `on` (default: the newest) and gives a name."""

from __future__ import annotations

from optimus_models.analytic.layers import (
    Add,
    BatchNorm,
    Concatenate,
    Convolution,
    Elementwise,
    GlobalPooling,
    Input,
    Layer,
    Linear,
    Network,
    Padding,
    Pair,
    Pooling,
    Shape,
)


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
