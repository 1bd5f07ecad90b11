"""The constants of a round, each with its reason. A shell may replace any of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from optimus_scheduler.objective import MEAN_JCT, Objective
from optimus_scheduler.retries import Backoff


def _no_prices() -> Mapping[str, float]:
    return MappingProxyType({})


CONVERGENCE_POINTS = 12
"""Losses needed before a job is called converged: fewer fit any curve."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Constants of `round.plan`. Times in seconds."""

    # --- forecasting
    sample_half_life_seconds: float = 900.0
    """A measured speed counts half after so long: machines and neighbours change."""
    full_weight_steps: int = 20
    """A speed measured over so many steps has full weight; fewer steps are noisier."""
    measuring_steps: int = 8
    """Steps at the present size after which that size counts as measured: the first one or two are warm-up."""
    measuring_seconds: float = 10.0
    """... and how long it must have been granted: changes follow each other no faster, except to let a job start."""
    sure_speed: float = 0.6
    """Confidence from which a speed model is no longer learning: about three measured sizes with little noise."""
    typical_seconds: float = 600.0
    """Time left of a job of which nothing at all is known, for the order of the queue only."""
    convergence_points: int = CONVERGENCE_POINTS

    # --- allocating
    objective: Objective = MEAN_JCT
    """What the policy `optimus` chooses sizes for."""
    least_task_gain: float = 0.01
    """A task that makes its job less than 1 % faster is not worth starting: measurements are not that exact."""
    growth_factor: float = 4.0
    """A job whose speed is still being learned grows at most by this factor: extrapolating further is guessing."""
    patience_seconds: float = 300.0
    """A job that waited longer, and a part of the time that it needs, is not passed by others any more."""
    patience_part: float = 2.0
    """That part: long jobs can wait for hours. With less, a crowded cluster serves in the order of arrival."""
    most_patience_seconds: float = 14_400.0
    """No job is asked to wait longer, however long it takes and however low its priority."""
    least_run_seconds: float = 300.0
    """A job that got tasks is not paused sooner: of a shorter run, too much would go into starting. Nor for a deadline
    whose job has to begin less than this before it: the two would pause each other in turn."""
    speed_exponent: float = 0.65
    """p of speed k^p on k units, for the weights of jobs by rank; the mean JCT is within 2 % from 0.4 to 0.9."""

    least_efficiency: float = 0.75
    """Policy `predictable`: no job starts with a size at which a task is worth less than this part of one at its
    minimum."""

    # --- elastic batches
    scale_batches: bool = True
    """Whether jobs with an elastic batch get the batch that suits their size; otherwise their fixed one."""
    least_batch_gain: float = 0.03
    """A batch changes alone, at a step boundary and without a stop, for so much more goodput: noise is not followed."""

    similar_work: float = 0.3
    """Amounts of remaining work whose logarithms differ by less are about the same: predictions err by as much."""
    doubtful_work: float = 1.0
    """... or by up to so much more of jobs whose speeds are in doubt: it costs little mean JCT, and saves changes."""

    # --- charging for changes
    rescale_margin: float = 3.0
    """A change has to save so many times what it costs: every change is felt, ..."""
    doubt_margin: float = 3.0
    """... and so many times more where nothing is known of the job's speeds, in part where little is: they err."""
    least_speedup: float = 0.075
    """... and has to make the job faster by this fraction, the error of a good speed model and a half more."""
    near_end_seconds: float = 10.0
    """A job with less time left keeps what it has: it will free everything in a moment."""

    # --- GPU types, deadlines, budgets
    gpu_type_by: Literal["speed", "price"] = "speed"
    """What decides between GPU types: the worth of a type to each job (`gpu_types.market`), or speed per price."""
    gpu_scaling: float = 0.8
    """Exponent of speed by workers, assumed when GPU types are compared: between none (0) and perfect scaling (1)."""
    least_type_gain: float = 0.25
    """A running job moves to another GPU type only for so much more: types differ by factors, noise by per cents."""
    deadline_margin: float = 1.25
    """Steps left are taken to be so many times the predicted ones, at most: predictions err by about a fifth."""
    deadline_grace: float = 0.1
    """A deadline that is missed by this part of the time it gave, at most, is still hurried for."""
    budget_margin: float = 0.9
    """A job grows only to sizes that would leave a tenth of its budget: costs are predicted, too."""

    # --- after failures of the owner's code
    retry_backoff: Backoff = field(default_factory=Backoff)
    """How long a job waits before it goes on from its last checkpoint."""

    # --- reconciling
    drain_seconds: float = 20.0
    """Time that an unwanted task has to leave at a step boundary; SIGTERM after it, SIGKILL after twice that."""
    cancel_force_seconds: float = 10.0
    """SIGKILL for tasks of a cancelled or ended job after so long: nothing waits for their result."""

    # --- money
    price_per_gpu_hour: Mapping[str, float] = field(default_factory=_no_prices)
    """Price of one GPU for one hour, by GPU type, in whatever currency `max_cost` is in. A type without one is free."""
    price_per_core_hour: float = 0.0
    """... and of one CPU core."""
