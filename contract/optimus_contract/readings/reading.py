"""What is learned of a script at one moment, whichever way it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from optimus_contract.limits import MAX_COUNT

# --- the planned length of a training, where it is reported beside its steps -----------------------------------------

STEPS = frozenset(
    {"max_steps", "max_iters", "max_iter", "max_iterations", "max_train_steps", "max_updates", "total_steps"}
    | {"total_iters", "total_iterations", "train_steps", "training_steps", "train_iters", "num_train_steps"}
    | {"num_training_steps", "num_iterations", "num_iters", "n_iters", "iterations", "max_step"}
)
"""How arguments and variables are called that say after how many steps a training ends ..."""
EPOCHS = frozenset(
    {"epochs", "num_epochs", "n_epochs", "max_epochs", "total_epochs", "num_train_epochs", "train_epochs"}
    | {"nepochs", "max_epoch", "num_epoch", "n_epoch", "nb_epochs", "nb_epoch", "epoch_num", "nepoch"}
)
"""... and after how many epochs."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The planned length of a training; None: not known."""

    total_steps: int | None = None
    total_epochs: int | None = None

    def over(self, other: Announced) -> Announced:
        """This, and what only the other one says."""
        return Announced(self.total_steps or other.total_steps, self.total_epochs or other.total_epochs)


NOTHING = Announced()


def of_parameters(parameters: Mapping[str, str]) -> Announced:
    """What the named parameters of a training say."""
    return Announced(_first(parameters, STEPS), _first(parameters, EPOCHS))


def _first(parameters: Mapping[str, str], names: frozenset[str]) -> int | None:
    """The first whole number from 1 under one of these names."""
    for name, text in parameters.items():
        if name.lower() in names and text.isascii() and text.isdigit() and 1 <= len(text) <= 16:
            value = int(text)
            if 1 <= value <= MAX_COUNT:
                return value
    return None


# --- the reading -----------------------------------------------------------------------------------------------------


class Channel(StrEnum):
    """A way by which a script's steps and losses become known; the first ones are trusted more."""

    CLIENT = "client"
    """The script calls `optimus_client`, or an integration does."""
    KUBEFLOW = "kubeflow"
    """Kubeflow's progress protocol (KEP-2779), which transformers speaks by itself."""
    MLFLOW = "mlflow"
    """MLflow's tracking API."""
    OTLP = "otlp"
    """OpenTelemetry metrics over HTTP."""
    TENSORBOARD = "tensorboard"
    """TensorBoard's event files."""
    PRINTED = "printed"
    """What the script prints."""

    @property
    def trust(self) -> int:
        """Higher is better."""
        return -list(Channel).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one channel learned at one moment. None: it reported nothing about that."""

    channel: Channel
    at: float
    """POSIX seconds."""
    step: int | None = None
    """Optimizer steps completed."""
    total_steps: int | None = None
    steps_per_epoch: int | None = None
    steps_into_epoch: int | None = None
    """How many of `step` are of the present epoch, where the rest is not counted: so many epochs of this length."""
    may_be_whole: bool = False
    """Nothing has shown yet whether `steps_per_epoch` is that, or the number of all steps."""
    is_bare: bool = False
    """Nothing has shown yet that `step` is of the training: files may have been counted before it."""
    replaces: bool = False
    """The steps that were bare before were not of the training."""
    went_on: bool = False
    """The processes went on further than was known before: with `steps_into_epoch`, which are theirs."""
    first_epoch: int | None = None
    """What the script calls its first epoch: 0 or 1."""
    announced: Announced | None = None
    """The planned length of the training, reported beside its steps."""
    corrects: bool = False
    """Totals that were reported before are wrong: what seemed to be the training's was an epoch's."""
    epoch: float | None = None
    """Passes over the data so far."""
    total_epochs: float | None = None
    loss: float | None = None
    """The training loss; may be NaN or infinite."""
    learning_rate: float | None = None
    planned_rates: tuple[tuple[int, float], ...] = ()
    """Optimizer steps completed, and the learning rate of the step that comes then: what is planned from here on."""
    gradient_norm: float | None = None
    examples: int | None = None
    """Training examples of one step over all workers."""
    progress: float | None = None
    """0 to 1, the framework's own estimate."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Figures of an evaluation."""
    stopped: bool = False
    """The script has saved and stops as it was asked to, at `step`."""
    resumes: bool = False
    """The script goes on from a checkpoint when it is started again."""
    save_seconds: float | None = None
    """For which it has saved before it stops."""
    load_seconds: float | None = None
    """For which it has loaded a checkpoint at its start."""
    rank: int | None = None
    """Of the process in the whole job (`RANK`), where the channel knows it."""


def moment(said: float | None, at: float) -> float:
    """When something happened, POSIX seconds: as its sender says, unless that is far from when it came (`at`)."""
    return said if said is not None and at - 3600.0 <= said <= at + 60.0 else at
