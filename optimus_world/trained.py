"""What the jobs of a world train, as formulas: a hidden loss curve, the speed of each size, parameters that add up.

The parameters of a job after step n are one number, the sum of a value of each step. A step that is lost, or done
twice, leaves another sum, wherever the parameters were moved to in between.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from optimus_workers.wire.values import TaskProfile, UpdateRule

PROFILE = TaskProfile(
    n_parameters=300,
    parameter_floats=304,
    total_floats=320,
    n_examples=640,
    global_batch_size=64,
    micro_batches=16,
    update=UpdateRule("sgd", 0.9, False, 0.0, (0.9, 0.999), 1e-8),
)
STEPS_PER_EPOCH = PROFILE.n_examples / PROFILE.global_batch_size
_MODULUS = 2**61 - 1


@dataclass(frozen=True, slots=True)
class Curve:
    """Eq. 1 of the paper, with coefficients that nobody is told; and how long steps take."""

    slope: float
    offset: float
    floor: float
    compute_seconds: float
    """Of one step of one worker."""
    transfer_seconds: float
    """Of one worker and one server."""

    @classmethod
    def of(cls, job_id: str, seed: int) -> Curve:
        """The job's own."""
        chance = random.Random(f"{seed} {job_id}")  # noqa: S311 - a simulation
        return cls(
            slope=chance.uniform(0.01, 0.06),
            offset=chance.uniform(0.3, 0.6),
            floor=chance.uniform(0.05, 0.2),
            compute_seconds=chance.uniform(15.0, 40.0),
            transfer_seconds=chance.uniform(1.0, 4.0),
        )

    def loss(self, step: int) -> float:
        return 1.0 / (self.slope * step + self.offset) + self.floor

    def step_seconds(self, workers: int, servers: int) -> float:
        return self.compute_seconds / workers + self.transfer_seconds * workers / max(servers, 1) + 0.3 * workers


def after(n_steps: int) -> int:
    """The parameters after so many steps, each once: known without training."""
    return sum(_value(step) for step in range(n_steps)) % _MODULUS


def applied(parameters: int, step: int) -> int:
    """The parameters after one more step."""
    return (parameters + _value(step)) % _MODULUS


def _value(step: int) -> int:
    return int.from_bytes(hashlib.blake2b(step.to_bytes(8, "big"), digest_size=7).digest(), "big")
