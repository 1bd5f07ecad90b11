"""What the user brings: a `TrainingTask` says what to train, and nothing about how many processes do it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, Self, SupportsIndex, get_args

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from optimus_workers.data.prefetching import check_depth
from optimus_workers.data.sampler import EpochOrder
from optimus_workers.errors import TaskError

# --- any optimizer of torch as a task's update rule, for all-reduce jobs: their workers hold all of the state --------


@dataclass(frozen=True, slots=True)
class TorchOptimizer:
    """`TorchOptimizer(torch.optim.RAdam, learning_rate=1e-3, options={"betas": (0.9, 0.99)})`.

    What an optimizer keeps for each parameter (`optimizer.state[parameter]`) may be tensors of at most as many numbers
    as the parameter has, and plain numbers. Raises `TaskError` when a field cannot be what it says.
    """

    make: Callable[..., torch.optim.Optimizer]
    """`make(parameters, lr=..., **options)`: an optimizer class, or a function like one."""
    learning_rate: float
    """`learning_rate_at` and a plateau schedule multiply it."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What else it is made with."""
    max_gradient_norm: float | None = None
    """See `OptimizerSpec`."""

    def __post_init__(self) -> None:
        rate, limit = self.learning_rate, self.max_gradient_norm
        if not callable(self.make):
            raise TaskError("make must be an optimizer class, such as torch.optim.RAdam, or a function like one")
        if not isinstance(rate, int | float) or not math.isfinite(rate) or rate <= 0:
            raise TaskError("learning_rate must be above 0")
        if "lr" in self.options:
            raise TaskError("options must not have lr: it is learning_rate")
        if limit is not None and not (isinstance(limit, int | float) and math.isfinite(limit) and limit > 0):
            raise TaskError("max_gradient_norm must be above 0, or None")

    @property
    def weight_decay(self) -> float:
        """Of groups that do not say theirs; 0 for an optimizer that knows no weight decay."""
        return float(self._defaults.get("weight_decay") or 0.0)

    @property
    def decays(self) -> bool:
        """Whether it knows weight decay."""
        return "weight_decay" in self._defaults

    @property
    def _defaults(self) -> Mapping[str, Any]:
        return self.over([nn.Parameter(torch.zeros(1))]).defaults

    def over(self, parameters: Any) -> torch.optim.Optimizer:
        """An optimizer of these parameters, or groups of them. Raises `TaskError` when it is none."""
        made: object = self.make(parameters, lr=self.learning_rate, **self.options)
        if not isinstance(made, torch.optim.Optimizer):
            raise TaskError(f"make must make a torch.optim.Optimizer, not {type(made).__name__}")
        return made


OptimizerKind = Literal["sgd", "adamw"]


class Dataset(Protocol):
    """A map-style dataset: examples by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class OptimizerSpec:
    """The update rule, as values: the parameter servers build it, each for its own range of the parameters.

    Meanings are those of `torch.optim.SGD` and `torch.optim.AdamW`.
    """

    kind: OptimizerKind = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    """sgd only."""
    nesterov: bool = False
    """sgd only."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    """adamw only."""
    eps: float = 1e-8
    """adamw only."""
    max_gradient_norm: float | None = None
    """Clip the gradient of a step (sync: of the whole global batch, async: of a worker's mini-batch) to this Euclidean
    norm over all parameters, as `torch.nn.utils.clip_grad_norm_` does. None: no clipping."""

    def __post_init__(self) -> None:
        _need(self.kind in get_args(OptimizerKind), f"kind must be sgd or adamw, not {self.kind!r}")
        _need(_finite(self.learning_rate) and self.learning_rate > 0, "learning_rate must be above 0")
        _need(_finite(self.momentum) and 0 <= self.momentum < 1, "momentum must be from 0 to below 1")
        _need(not self.nesterov or self.momentum > 0, "nesterov needs a momentum above 0")
        _need(_finite(self.weight_decay) and self.weight_decay >= 0, "weight_decay must not be below 0")
        _need(len(self.betas) == 2 and all(0 <= beta < 1 for beta in self.betas), "betas must be two of 0 to below 1")
        _need(_finite(self.eps) and self.eps > 0, "eps must be above 0")
        limit = self.max_gradient_norm
        _need(limit is None or (_finite(limit) and limit > 0), "max_gradient_norm must be above 0, or None")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingTask:
    """A model, its data and its update rule.

    The global batch of each step is cut into `micro_batches` fixed parts that are shared among the workers. A step's
    gradient is the mean over all its examples (each part weighs in by its number of examples), so the update does not
    depend on the number of workers. For that, the examples of a batch must not influence each other in the forward
    pass: use GroupNorm or LayerNorm rather than BatchNorm.

    Raises `TaskError` when a part cannot be what it says.
    """

    model: Callable[[], nn.Module]
    """Builds the network, with its initial weights from torch's global random generator (seeded before the call)."""
    loss: Callable[[nn.Module, Any], Tensor]
    """`loss(model, batch)`: the mean loss over the batch's examples, a scalar tensor with a gradient."""
    dataset: Dataset
    """The training examples."""
    optimizer: OptimizerSpec | TorchOptimizer
    """A `TorchOptimizer` is for all-reduce jobs."""
    global_batch_size: int
    """Examples in one step (sync), in one worker's mini-batch (async)."""
    collate: Callable[[Any], Any] = default_collate
    """Makes a batch of a list of examples."""
    micro_batches: int = 12
    """Parts V of the global batch; more workers than this are of no use. 12 divides evenly by 1, 2, 3, 4, 6 and 12."""
    learning_rate_at: Callable[[int, float], float] | None = None
    """`learning_rate_at(step, epoch)`: what to multiply the optimizer's learning rate with at step `step` (counted from
    0), which begins after `epoch` passes over the data. None: always 1. With weak scaling a step of w workers counts
    as w, so that schedules go by the data seen."""
    plateau: Callable[[torch.optim.Optimizer], Any] | None = None
    """`plateau(optimizer)` makes a `torch.optim.lr_scheduler.ReduceLROnPlateau`, which is given the mean loss of each
    epoch. For all-reduce jobs. None: the rate does not depend on the loss."""
    parameter_groups: Callable[[nn.Module], Iterable[Any]] | None = None
    """`parameter_groups(model)`: what one would give torch's optimizer, a list of dicts with "params" and any of "lr"
    and "weight_decay" (see `optimus_workers.task.parameter_groups`). None: all parameters are updated alike."""
    prefetch: int = 0
    """Micro-batches that a process of its own makes ahead while this one computes (see `data.prefetching`); 0: none."""
    evaluate: Callable[[nn.Module], dict[str, float]] | None = None
    """`evaluate(model)`: metrics for the job's result, for example {"test_accuracy": 0.97}. Called at the end, and
    after each epoch if the job is to converge by one of them (or as often as `evaluate_epochs` says)."""

    def __post_init__(self) -> None:
        _need(
            callable(self.model) and not isinstance(self.model, nn.Module),
            "model must be a function that makes the torch.nn.Module (such as lambda: nn.Linear(1, 1)), not the module",
        )
        _need(callable(self.loss), "loss must be a function of (model, batch)")
        _need(
            hasattr(self.dataset, "__len__") and hasattr(self.dataset, "__getitem__"),
            "dataset must be map-style: it needs len(dataset) and dataset[index]",
        )
        _need(callable(self.collate), "collate must be a function of a list of examples")
        _need(
            isinstance(self.optimizer, OptimizerSpec | TorchOptimizer),
            "optimizer must be an OptimizerSpec or a TorchOptimizer",
        )
        _need(self.plateau is None or callable(self.plateau), "plateau must be a function of the optimizer")
        _need(_positive(self.micro_batches), "micro_batches must be a whole number from 1")
        _need(_positive(self.global_batch_size), "global_batch_size must be a whole number from 1")
        _need(
            self.learning_rate_at is None or callable(self.learning_rate_at),
            "learning_rate_at must be a function of (step, epoch)",
        )
        _need(
            self.parameter_groups is None or callable(self.parameter_groups),
            "parameter_groups must be a function of the model",
        )
        check_depth(self.prefetch)
        _need(self.evaluate is None or callable(self.evaluate), "evaluate must be a function of the model")

    @property
    def why_no_servers(self) -> str | None:
        """Why parameter servers cannot train this; None when they can."""
        needs = "optimizer: a TorchOptimizer" if isinstance(self.optimizer, TorchOptimizer) else None
        needs = "plateau: a schedule by the loss" if needs is None and self.plateau is not None else needs
        return None if needs is None else f"{needs} is for jobs without parameter servers: --architecture allreduce"

    @property
    def n_examples(self) -> int:
        """Examples in one epoch, at least 1. May read the data at first. Raises `TaskError` if there are none."""
        n_examples = len(self.dataset)
        _need(n_examples > 0, "dataset is empty")
        return n_examples

    @property
    def epoch_order(self) -> EpochOrder | None:
        """The data set's own order of examples, if it has one (`epoch_order(seed, epoch)`), as shards have."""
        order: EpochOrder | None = getattr(self.dataset, "epoch_order", None)
        return order

    @property
    def steps_per_epoch(self) -> float:
        """Steps in one pass over the data."""
        return self.n_examples / self.global_batch_size

    def build_model(self, seed: int) -> nn.Module:
        """The network with the initial weights of this seed. Leaves torch's random generator as it was.

        Raises `TaskError` when the user's function returns something else, or nothing that can be trained.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = self.model()
        _need(isinstance(model, nn.Module), f"model() must return a torch.nn.Module, not {type(model).__name__}")
        _need(any(parameter.requires_grad for parameter in model.parameters()), "model() has nothing to train")
        return model

    def batch(self, indices: Iterable[SupportsIndex]) -> Any:
        """The collated batch of these examples.

        Like torch's own loader, it asks a dataset that has `__getitems__` for all of them at once.
        """
        wanted = [int(index) for index in indices]
        fetch_many = getattr(self.dataset, "__getitems__", None)
        return self.collate(fetch_many(wanted) if fetch_many else [self.dataset[index] for index in wanted])

    def learning_rate(self, step: int, n_seen: int | None = None) -> float:
        """The absolute learning rate of step `step` (counted from 0), before which `n_seen` examples were trained on
        (None: a global batch at each step)."""
        if self.learning_rate_at is None:
            return self.optimizer.learning_rate
        n_seen = step * self.global_batch_size if n_seen is None else n_seen
        return self.optimizer.learning_rate * self.learning_rate_at(step, n_seen / self.n_examples)

    def with_global_batch_size(self, global_batch_size: int | None) -> Self:
        """The same task with the job's batch size; None keeps the task's own."""
        return self if global_batch_size is None else replace(self, global_batch_size=global_batch_size)

    def with_max_gradient_norm(self, limit: float | None) -> Self:
        """The same task clipped as the job says; None keeps the task's own."""
        return self if limit is None else replace(self, optimizer=replace(self.optimizer, max_gradient_norm=limit))


def checked_loss(loss: object) -> Tensor:
    """What a task's `loss` has returned. Raises `TaskError` where no gradient can come of it."""
    needed = "loss must return a scalar tensor with a gradient, the mean over the batch"
    if not isinstance(loss, Tensor):
        raise TaskError(f"{needed}: it returned a {type(loss).__name__} (no float(...), .item() or .numpy())")
    _need(loss.numel() == 1, f"{needed}: it returned a tensor of shape {tuple(loss.shape)} (take its .mean())")
    _need(loss.requires_grad, f"{needed}: it returned a tensor without one (no .detach(), torch.no_grad() or .data)")
    return loss


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise TaskError(message)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
