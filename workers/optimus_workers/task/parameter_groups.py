"""Which parameters are updated how: groups with a learning rate and a weight decay of their own.

A task gives its groups as it would give them to torch's optimizer (`TrainingTask.parameter_groups`):

    parameter_groups=lambda model: [{"params": model.head.parameters(), "lr": 0.1}, {"params": model.body.parameters()}]

or by the names of the parameters, without weight decay for biases and norms:

    parameter_groups=partial(named_groups, options={"head.*": {"lr": 0.1}}, decay_vectors=False)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from optimus_workers.errors import TaskError

if TYPE_CHECKING:
    from optimus_workers.task.definition import TrainingTask

OPTIONS = ("lr", "weight_decay")
"""What a group may have of its own."""


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Trainable parameters that are updated alike, in the order of the model."""

    parameters: tuple[nn.Parameter, ...]
    learning_rate_scale: float
    """The group's learning rate, in parts of the optimizer's: schedules multiply both."""
    weight_decay: float


def parameter_groups(task: TrainingTask, model: nn.Module) -> tuple[ParameterGroup, ...]:
    """The groups of the task's own model: each trainable parameter is in one of them. Groups that are updated alike
    are one; those that come first in the model come first.

    Raises `TaskError` when the task's groups are not such, and what the user's code raises.
    """
    options = _options(task, model)
    members: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            members.setdefault(options[id(parameter)], []).append(parameter)
    return tuple(ParameterGroup(tuple(found), *key) for key, found in members.items())


def named_groups(
    model: nn.Module, options: Mapping[str, Mapping[str, float]] | None = None, *, decay_vectors: bool = True
) -> list[dict[str, Any]]:
    """Groups by the names of parameters: the first pattern (as in file names, "*.bias") that fits one counts, the
    others keep the optimizer's own values.

    Without `decay_vectors`, parameters of fewer than two dimensions (biases, scales of norms) are not decayed.
    Raises `TaskError` when a pattern fits no parameter.
    """
    patterns = options or {}
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        pattern = next((pattern for pattern in patterns if fnmatchcase(name, pattern)), "")
        exempt = not decay_vectors and parameter.ndim < 2
        group = groups.setdefault((pattern, exempt), {"params": []} | dict(patterns.get(pattern, {})))
        group["params"].append(parameter)
        if exempt:
            group["weight_decay"] = 0.0
    if unused := [pattern for pattern in patterns if all(pattern != used for used, _ in groups)]:
        known = ", ".join(name for name, _ in model.named_parameters())
        raise TaskError(f"parameter_groups: no parameter is left for {unused[0]!r}; there are {known[:500]}")
    return list(groups.values())


def _options(task: TrainingTask, model: nn.Module) -> dict[int, tuple[float, float]]:
    """id of a parameter → learning rate scale and weight decay."""
    spec = task.optimizer
    groups = [{"params": model.parameters()}] if task.parameter_groups is None else task.parameter_groups(model)
    listed = _listed(groups)
    names = {id(parameter): name for name, parameter in model.named_parameters() if parameter.requires_grad}
    found: dict[int, tuple[float, float]] = {}
    for group in listed:
        rate = _value(group, "lr", spec.learning_rate, above_zero=True)
        key = rate / spec.learning_rate, _value(group, "weight_decay", spec.weight_decay, above_zero=False)
        for parameter in _parameters(group["params"]):
            if not parameter.requires_grad:
                continue  # frozen: the optimizer has nothing to do with it
            if id(parameter) not in names:
                raise TaskError("parameter_groups: one of the parameters is not of the model that it was called with")
            if id(parameter) in found:
                raise TaskError(f"parameter_groups: {names[id(parameter)]} is in two groups")
            found[id(parameter)] = key
    if missing := [name for identity, name in names.items() if identity not in found]:
        raise TaskError(f"parameter_groups: {', '.join(missing[:5])} in no group; freeze what is not to be trained")
    return found


def _listed(groups: object) -> Sequence[dict[str, Any]]:
    """The groups as dicts; like torch's optimizers, it takes plain parameters as one group."""
    if not isinstance(groups, Iterable) or isinstance(groups, Tensor | Mapping):
        raise TaskError(f"parameter_groups must return a list of dicts as for torch.optim, not {type(groups).__name__}")
    listed = list(groups)
    if not any(isinstance(group, Mapping) for group in listed):
        return [{"params": listed}]
    for group in listed:
        if not isinstance(group, Mapping) or "params" not in group:
            raise TaskError('parameter_groups: each group must be a dict with "params"')
        if unknown := sorted(str(key) for key in group.keys() - {"params", "name", *OPTIONS}):
            raise TaskError(
                f"parameter_groups: {unknown[0]!r} is the same for all groups (OptimizerSpec has it); "
                f"a group may have {' and '.join(OPTIONS)}"
            )
    return [dict(group) for group in listed]


def _parameters(listed: object) -> list[nn.Parameter]:
    items = [listed] if isinstance(listed, Tensor) or not isinstance(listed, Iterable) else list(listed)
    found: list[nn.Parameter] = []
    for item in items:
        # As in torch: parameters, or pairs of (name, parameter).
        parameter = item[1] if isinstance(item, tuple) and len(item) == 2 else item
        if not isinstance(parameter, nn.Parameter):
            kind = type(parameter).__name__
            raise TaskError(f'parameter_groups: "params" must be parameters of the model, not {kind}')
        found.append(parameter)
    return found


def _value(group: Mapping[str, Any], name: str, default: float, *, above_zero: bool) -> float:
    value = group.get(name, default)
    number = isinstance(value, int | float) and math.isfinite(value)
    if not number or value < 0 or (above_zero and value == 0):
        bound = "above 0 (freeze what is not to be trained)" if above_zero else "not below 0"
        raise TaskError(f"parameter_groups: {name} must be a number {bound}, not {value!r}")
    return float(value)
