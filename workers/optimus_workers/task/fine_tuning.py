"""Starting from trained weights: load them, and train all of the network or only a part.

    model=partial(fine_tuned, partial(resnet, 50), "resnet50.safetensors", replaced=["12"], trained=["12"])

What is not trained takes no part in pushing and pulling: parameter servers hold the trained parameters only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

from optimus_workers.errors import TaskError


def fine_tuned(
    build: Callable[[], nn.Module],
    weights: str | Path,
    replaced: Iterable[str] = (),
    trained: Iterable[str] | None = None,
) -> nn.Module:
    """The network of `build` with the weights of a safetensors file.

    `replaced`: names of modules that keep their new weights (a head for other classes). `trained`: names of modules to
    train, all others are frozen (feature extraction); None trains everything. Names are those of `named_modules()`.
    Raises `TaskError` when the file or a name does not fit the network.
    """
    model = build()
    load_weights(model, weights, replaced)
    if trained is not None:
        freeze_all_but(model, trained)
    return model


def load_weights(model: nn.Module, weights: str | Path, replaced: Iterable[str] = ()) -> None:
    """Put the tensors of a safetensors file into `model`, except into the modules `replaced`."""
    kept = tuple(_checked(model, name) for name in replaced)
    try:
        tensors = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise TaskError(f"cannot read the weights {weights}: {error}") from error
    wanted = {name: tensor for name, tensor in model.state_dict().items() if not _is_in(name, kept)}
    problem = _difference(wanted, {name: tensor for name, tensor in tensors.items() if not _is_in(name, kept)})
    if problem:
        raise TaskError(f"the weights {weights} are of another network: {problem}")
    model.load_state_dict({name: tensors[name] for name in wanted}, strict=False)


def freeze_all_but(model: nn.Module, trained: Iterable[str]) -> None:
    """Leave only the parameters of these modules to be trained; frozen norms keep their statistics as well."""
    names = tuple(_checked(model, name) for name in trained)
    if not names:
        raise TaskError("trained must name at least one module")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(_is_in(name, names))
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not _is_in(name, names)
    ]
    for name in norms:
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, FrozenNorm(model.get_submodule(name)))


class FrozenNorm(nn.Module):
    """A batch norm that always uses the statistics it was loaded with: those of a few new examples would be worse."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("running_mean", norm.running_mean)
        self.register_buffer("running_var", norm.running_var)

    def forward(self, x: Tensor) -> Tensor:
        return functional.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def _checked(model: nn.Module, name: str) -> str:
    names = [found for found, _ in model.named_modules() if found]
    if name not in names:
        raise TaskError(f"the network has no module {name!r}; it has {', '.join(names[:20])}")
    return name


def _is_in(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def _difference(wanted: dict[str, Tensor], found: dict[str, Tensor]) -> str | None:
    for name, tensor in wanted.items():
        if name not in found:
            return f"{name} is missing"
        if found[name].shape != tensor.shape:
            return f"{name} has shape {tuple(found[name].shape)} there and {tuple(tensor.shape)} here"
    unknown = sorted(found.keys() - wanted.keys())
    return f"it has {unknown[0]}, this one has not" if unknown else None
