"""Training at the speed of a clock, for tests of what the scheduler makes of a job's speed.

What a step takes on cores that tests share with each other is anybody's guess, and a scheduler that measures two
workers to be no faster than one is right not to add the second. Waiting needs no core: how a job of this module scales
is the same on every machine, however busy.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from optimus_workers.task import TrainingTask
from optimus_workers.zoo import digits


def mlp(seconds_per_example: float = 0.0, seconds_per_pass: float = 0.0, **arguments: Any) -> TrainingTask:
    """`digits.mlp`, each forward pass of which takes so much longer.

    By examples: w workers are w times as fast. By passes: a larger batch costs nothing.
    """
    task = digits.mlp(**arguments)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        time.sleep(seconds_per_pass + seconds_per_example * len(batch[0]))
        return task.loss(model, batch)

    return replace(task, loss=loss)
