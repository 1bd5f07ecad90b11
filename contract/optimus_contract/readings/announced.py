"""How long a training is meant to last, as somebody said beside its steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optimus_contract.limits import MAX_COUNT

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
    """How long a training is meant to last; None: nobody said."""

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
