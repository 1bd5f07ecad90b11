"""What jobs really do: their true speeds, loss curves and ends, which no scheduler is shown.

A `Truth` is the description of a job's nature, a `Training` one run of it. Seconds, steps, steps per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from optimus_scheduler.model import Mode
from optimus_scheduler.place.network_cost import transfer_cost

Shape = tuple[tuple[int, int], ...]
"""(workers, servers) on each node that the job uses, most tasks first. Empty: it has no tasks."""


class Training(Protocol):
    """One run of a job. `factor` is what stragglers and interference leave of its speed, in (0, 1]."""

    batch: int | None
    """Of a job with an elastic batch: the global batch that it trains with, set from outside."""

    @property
    def step(self) -> float:
        """Steps done; scale-invariant ones with an elastic batch."""

    @property
    def updates(self) -> float:
        """Steps done, each as it was, whatever its batch."""

    @property
    def is_done(self) -> bool: ...

    def advance(self, seconds: float, shape: Shape, factor: float = 1.0) -> float:
        """Train so long; the seconds really trained, which are fewer when the job ended on the way."""

    def seconds_left(self, shape: Shape, factor: float = 1.0) -> float:
        """Until the end, if nothing changes; infinite when the shape makes no progress."""

    def steps_left(self) -> float:
        """Steps until the end: what an oracle knows."""

    def steps_per_epoch(self) -> float | None:
        """What the job reports of itself now; None for a job that knows no epochs."""

    def epochs(self) -> float | None:
        """Epochs done, with the part of the running one; None where all take the same number of steps."""

    def loss(self) -> float | None:
        """The training loss without noise; None for a job that reports none."""

    def noise_scale(self) -> float | None:
        """tr(Σ)/|G|² now, in examples; None for a job with a fixed batch, which reports none."""

    def exchange_part(self, shape: Shape) -> float | None:
        """The part of each step with its present batch in which gradients travel; None for a job with servers, and for
        one of which it is not known.
        """

    def goodput(self, workers: int, batch: int) -> float:
        """Scale-invariant steps per second that an oracle expects of that many workers, placed as well as can be, of a
        job with an elastic batch; as it is now.
        """


class Truth(Protocol):
    """The nature of a job."""

    def begin(self) -> Training:
        """A run at its beginning."""

    def steps_per_second(self, shape: Shape) -> float:
        """True speed with this shape, undisturbed; 0 without workers."""

    def oracle_speed(self, workers: int, servers: int) -> float:
        """What an oracle expects of that many tasks, placed as well as can be; above 0 for workers >= 1."""

    def fastest(self, workers: int, servers: int) -> Shape:
        """That many tasks placed as well as can be."""


def size_of(shape: Shape) -> tuple[int, int]:
    """Workers and servers of a shape."""
    return sum(workers for workers, _ in shape), sum(servers for _, servers in shape)


# --- parametric jobs -------------------------------------------------------------------------------------------------

SpeedLaw = Callable[[int, int], float]
"""Steps per second of (workers, servers), workers >= 1."""


@dataclass(frozen=True, slots=True)
class ParameterServerLaw:
    """Eqs. 3 and 4 of the paper: sync 1/(θ0·M/w + θ1 + θ2·w/p + θ3·w + θ4·p), async w/(θ0 + θ1·w/p + θ2·w + θ3·p).

    References: Peng et al., "Optimus", EuroSys 2018, section 3.2.
    """

    theta: tuple[float, ...]
    """θ0..θ4 (sync) or θ0..θ3 (async), seconds."""
    batch: float = 1.0
    """M, examples; 1 in async mode."""
    mode: Mode = Mode.SYNC

    def __call__(self, workers: int, servers: int) -> float:
        return self.placed(workers, servers, workers / max(servers, 1))

    def placed(self, workers: int, servers: int, exchange: float) -> float:
        """Steps per second with `exchange` in the place of w/p, which is that of tasks on nodes of their own."""
        w, p = float(workers), float(max(servers, 1))
        if self.mode is Mode.ASYNC:
            a, b, c, d = self.theta
            return w / (a + b * exchange + c * w + d * p)
        a, b, c, d, e = self.theta
        return 1.0 / (a * self.batch / w + b + c * exchange + d * w + e * p)


@dataclass(frozen=True, slots=True)
class AllReduceLaw:
    """Amdahl's law with an exchange that grows with the ring: a step takes pass + compute/w + exchange·(w-1)/w."""

    compute_seconds: float
    """One step's examples on one worker."""
    exchange_seconds: float
    """What a large ring adds to every step; 2(w-1)/w of the model is sent, which tends to this."""
    pass_seconds: float = 0.0
    """What each pass takes beside its examples: more workers with fewer examples each do not save it."""

    def __call__(self, workers: int, _servers: int) -> float:
        exchange = self.exchange_seconds * (workers - 1)
        return workers / (self.compute_seconds + self.pass_seconds * workers + exchange)

    def computing_seconds(self, workers: int) -> float:
        """The part of a step in which nothing travels."""
        return self.pass_seconds + self.compute_seconds / workers


@dataclass(frozen=True, slots=True)
class LossLaw:
    """l = 1/(β0·epoch + β1) + β2, the paper's Eq. 1 in epochs."""

    beta0: float
    beta1: float
    beta2: float

    def __call__(self, epoch: float) -> float:
        return 1.0 / (self.beta0 * epoch + self.beta1) + self.beta2


@dataclass(frozen=True, slots=True)
class ParametricTruth:
    """A job of `total_steps` steps with a speed law and, if it reports a loss, a loss law."""

    total_steps: float
    law: SpeedLaw
    loss_law: Callable[[float], float] | None = None
    """Of the epoch; a `LossLaw` or what was measured."""
    epoch_steps: float | None = None
    crossing_factor: float = 1.0
    """Speed that is left of a job on several nodes, in (0, 1]."""

    def begin(self) -> ParametricTraining:
        return ParametricTraining(self)

    def steps_per_second(self, shape: Shape) -> float:
        workers, servers = size_of(shape)
        if workers < 1:
            return 0.0
        return self.law(workers, servers) * (self.crossing_factor if len(shape) > 1 else 1.0)

    def oracle_speed(self, workers: int, servers: int) -> float:
        return self.steps_per_second(self.fastest(workers, servers))

    def fastest(self, workers: int, servers: int) -> Shape:
        return ((workers, servers),)


class ByLaws(Protocol):
    """What a run by laws reads of its job."""

    @property
    def total_steps(self) -> float: ...

    @property
    def loss_law(self) -> Callable[[float], float] | None: ...

    @property
    def epoch_steps(self) -> float | None: ...


class TrainingByLaws:
    """What runs of all jobs have in common whose steps and losses follow laws."""

    __slots__ = ()
    truth: ByLaws
    step: float

    @property
    def is_done(self) -> bool:
        return self.step >= self.truth.total_steps

    def steps_left(self) -> float:
        return max(self.truth.total_steps - self.step, 0.0)

    def steps_per_epoch(self) -> float | None:
        return self.truth.epoch_steps

    def epochs(self) -> float | None:
        return None

    def loss(self) -> float | None:
        if self.truth.loss_law is None or self.truth.epoch_steps is None:
            return None
        return self.truth.loss_law(self.step / self.truth.epoch_steps)


@dataclass(slots=True)
class ParametricTraining(TrainingByLaws):
    """A run of a `ParametricTruth`."""

    truth: ParametricTruth
    step: float = 0.0
    batch: int | None = None

    @property
    def updates(self) -> float:
        return self.step

    def advance(self, seconds: float, shape: Shape, factor: float = 1.0) -> float:
        needed = self.seconds_left(shape, factor)
        # A hair early counts as the end: the event of the end was computed with the same rounding errors.
        if needed <= seconds + 1e-9 * max(seconds, 1.0):
            self.step = self.truth.total_steps
            return min(needed, seconds)
        self.step += self.truth.steps_per_second(shape) * factor * seconds
        return seconds

    def seconds_left(self, shape: Shape, factor: float = 1.0) -> float:
        if self.is_done:
            return 0.0
        speed = self.truth.steps_per_second(shape) * factor
        return self.steps_left() / speed if speed > 0 else math.inf

    def noise_scale(self) -> float | None:
        return None

    def exchange_part(self, shape: Shape) -> float | None:
        law, (workers, _) = self.truth.law, size_of(shape)
        if not isinstance(law, AllReduceLaw):
            return None
        computing = law.computing_seconds(workers) * self.truth.steps_per_second(shape)
        return max(1.0 - computing, 0.0)

    def goodput(self, workers: int, batch: int) -> float:
        del batch  # it is fixed
        return self.truth.oracle_speed(workers, 0)


Measured = tuple[tuple[int, int, float], ...]
"""(workers, servers, steps per second)"""


@dataclass(frozen=True, slots=True)
class MeasuredLaw:
    """Steps per second: as measured at the sizes that the job had, elsewhere by a law that is bent to what was
    measured nearest, so that it has no jump there."""

    law: SpeedLaw
    measured: Measured
    _known: dict[tuple[int, int], float] = field(default_factory=dict, repr=False, compare=False)

    def __call__(self, workers: int, servers: int) -> float:
        size = (workers, servers)
        if size not in self._known:
            w, p, speed = min(self.measured, key=lambda one: _distance(one, workers, servers))
            self._known[size] = speed * self.law(workers, servers) / self.law(w, p)
        return self._known[size]


def _distance(one: tuple[int, int, float], workers: int, servers: int) -> float:
    """Between sizes, by their logarithms: from 1 to 2 is as far as from 8 to 16."""
    return math.hypot(math.log(one[0] / max(workers, 1)), math.log(max(one[1], 1) / max(servers, 1)))


@dataclass(frozen=True, slots=True)
class MeasuredLosses:
    """The loss by epoch, between measured points on a straight line."""

    epochs: tuple[float, ...]
    """Increasing."""
    losses: tuple[float, ...]

    def __call__(self, epoch: float) -> float:
        return float(np.interp(epoch, self.epochs, self.losses))


_SERVERS = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
_EXCESS = (1.0, 1.15, 1.03, 1.28, 1.52, 1.57, 1.6)
"""What MXNet's division of the parameters makes of the exchange, by number of servers: the difference of the step times
of figure 20 over θ2·w/p of table 2, with 10 workers; about the same from 12 to 20 servers."""


def uneven_excess(servers: int) -> float:
    """How many times as long the exchange takes when parameters are divided as MXNet does it."""
    return float(np.interp(servers, _SERVERS, _EXCESS))


@dataclass(frozen=True, slots=True)
class PlacedTruth(ParametricTruth):
    """A job with parameter servers whose speed depends on its placement, as on the paper's testbed.

    A fitted law such as Eq. 4 knows no nodes: its exchange θ2·w/p is that of tasks that all have nodes of their own.
    Here that term is the cost of the job's real placement (section 4.2 of the paper; `transfer_cost`): zero on a single
    node, and the traffic of the busiest task to other nodes otherwise.

    References: Peng et al., "Optimus", EuroSys 2018, sections 3.2 and 4.2, figures 20 and 21.
    """

    tasks_per_node: int = 4
    """What `fastest` takes to fit on one node: an oracle does not know which nodes there will be."""
    uneven: bool = False
    """Whether parameters are divided as MXNet does it, not evenly."""

    def steps_per_second(self, shape: Shape) -> float:
        workers, servers = size_of(shape)
        if workers < 1:
            return 0.0
        assert isinstance(self.law, ParameterServerLaw)
        excess = uneven_excess(servers) if self.uneven else 1.0
        return self.law.placed(workers, servers, transfer_cost(shape) * excess)

    def fastest(self, workers: int, servers: int) -> Shape:
        nodes = -(-(workers + servers) // self.tasks_per_node)
        return tuple((_part(workers, nodes, k), _part(servers, nodes, k)) for k in range(nodes))


def _part(count: int, parts: int, index: int) -> int:
    return (index + 1) * count // parts - index * count // parts
