"""What the samples of one job say, in bounded memory: its loss by step and its speed by size.

Fed incrementally with samples in the order of their ids. Feeding all of them again (after a restart of the service)
gives the same: nothing here depends on when a sample was seen.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from optimus_contract.telemetry import Sample
from optimus_models.history import LossBuckets
from optimus_scheduler.model import Mode, SpeedSample
from optimus_service.observe.stragglers import SlowWorkers
from optimus_service.store.records import MembershipRecord, SampleRecord

WINDOW_SECONDS = 5.0
"""Training time that one speed sample covers: long enough to average over hiccups, short enough to see changes."""
_LEAST_SECONDS = 1.0
"""A window that is still open counts from here on."""
MAX_WINDOWS_PER_SIZE = 8
"""Older windows of the same size are forgotten: machines and neighbours change."""
MAX_NOISE_SCALES = 50
"""They are moving averages: old ones add nothing."""
_FIRST_RECORD = 0
"""The first record of a rank in an epoch is no measure of speed: it contains connecting and warming up."""


Rates = tuple[tuple[float, ...], tuple[float, ...]]
"""Steps, increasing, and the learning rate of each."""
NO_RATES: Rates = ((), ())


def steps_of(sample: Sample) -> int:
    """Those that were computed, whatever they are worth."""
    return sample.n_steps if sample.updates is None else sample.updates


def newest_learning_rate(newest: Sequence[Sample]) -> float | None:
    """Of the newest sample that tells one."""
    told = [sample for sample in newest if sample.learning_rate is not None]
    return max(told, key=lambda sample: (sample.membership_epoch, sample.step)).learning_rate if told else None


@dataclass(slots=True)
class _Window:
    """Steps and training seconds of one rank. Of an elastic batch: updates, whatever they are worth."""

    n_steps: int = 0
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    """Those in which a rank waited for the gradients of the others."""

    @property
    def steps_per_second(self) -> float:
        return self.n_steps / self.seconds


@dataclass(slots=True)
class _Windows:
    """The windows of all ranks of one membership epoch, which are being filled."""

    workers: int
    servers: int
    gpu_type: str | None = None
    batch: int | None = None
    """If it is elastic."""
    measures_exchange: bool = True
    """With servers, waiting is no measure of what travels: pushing and pulling take time of their own. A script does
    not measure its parts."""
    at: float = 0.0
    by_rank: dict[int, _Window] = field(default_factory=dict)

    def add(self, sample: Sample) -> None:
        window = self.by_rank.setdefault(sample.rank, _Window())
        window.n_steps += steps_of(sample)
        window.seconds += sample.seconds
        window.exchange_seconds += sample.wait_seconds
        self.at = max(self.at, sample.at)

    def speed(self, mode: Mode, least_seconds: float) -> SpeedSample | None:
        """None until the ranks that count have `least_seconds` each.

        In sync mode all ranks make the same steps together, so rank 0 tells the job's speed. In async mode each makes
        steps of its own, and they add up.
        """
        ranks = [0] if mode is Mode.SYNC else range(self.workers)
        windows = [self.by_rank.get(rank) for rank in ranks]
        filled = [window for window in windows if window is not None and window.seconds >= least_seconds]
        if len(filled) < len(windows):
            return None
        speed = sum(window.steps_per_second for window in filled)
        n_steps = sum(window.n_steps for window in filled)
        exchange = sum(window.exchange_seconds for window in filled) / n_steps if self.measures_exchange else None
        return SpeedSample(
            self.workers, self.servers, speed, n_steps, self.at, self.gpu_type, self.batch, exchange_seconds=exchange
        )


class SpeedHistory:
    """Measured speeds by size and GPU type. How much an old one counts is for the scheduler: each says when it was."""

    def __init__(self, mode: Mode, *, measures_parts: bool = True) -> None:
        """`measures_parts`: samples say how long each part of a step took; those of a script do not."""
        self._mode = mode
        self._measures_parts = measures_parts
        self._epoch = 0
        """The newest membership epoch seen. What older ones still send is late and left out."""
        self._open: _Windows | None = None
        self._closed: dict[tuple[int, int, str, int], deque[SpeedSample]] = {}

    def add(self, sample: Sample, gpu_type: str | None = None) -> None:
        """`gpu_type`: of the membership that the sample is from."""
        if sample.membership_epoch > self._epoch:
            self._close(_LEAST_SECONDS)
            self._epoch = sample.membership_epoch
        late = sample.membership_epoch < self._epoch
        if late or sample.sequence == _FIRST_RECORD or sample.seconds <= 0:
            return
        if self._open is None:
            measures_exchange = self._measures_parts and not sample.servers
            self._open = _Windows(sample.workers, sample.servers, gpu_type, sample.global_batch, measures_exchange)
        self._open.add(sample)
        if self._open.speed(self._mode, WINDOW_SECONDS) is not None:
            self._close(WINDOW_SECONDS)

    def samples(self) -> tuple[SpeedSample, ...]:
        """By size, oldest first; the window that is being filled is among them."""
        present = self._open.speed(self._mode, _LEAST_SECONDS) if self._open is not None else None
        last = [present] if present is not None else []
        return (*(speed for size in sorted(self._closed) for speed in self._closed[size]), *last)

    def _close(self, least_seconds: float) -> None:
        speed = self._open.speed(self._mode, least_seconds) if self._open is not None else None
        self._open = None
        if speed is not None:
            place = (speed.workers, speed.servers, speed.gpu_type or "", speed.batch or 0)
            self._closed.setdefault(place, deque(maxlen=MAX_WINDOWS_PER_SIZE)).append(speed)


@dataclass(slots=True)
class _Pauses:
    """How much of the time of worker 0 goes into steps: between them it evaluates and writes checkpoints."""

    epoch: int = 0
    last_at: float | None = None
    seconds: float = 0.0
    """From its first report in each membership on ..."""
    busy_seconds: float = 0.0
    """... and in steps."""

    def add(self, sample: Sample) -> None:
        if sample.rank != 0 or sample.membership_epoch < self.epoch:
            return
        if sample.membership_epoch == self.epoch and self.last_at is not None and sample.at > self.last_at:
            self.seconds += sample.at - self.last_at
            self.busy_seconds += min(sample.seconds, sample.at - self.last_at)
        self.epoch, self.last_at = sample.membership_epoch, sample.at

    @property
    def busy_part(self) -> float:
        """1 before anything is known."""
        return self.busy_seconds / self.seconds if self.seconds >= _LEAST_SECONDS else 1.0


class JobHistory:
    """Everything a round needs of one job's samples."""

    def __init__(
        self, mode: Mode, metric: str | None = None, *, measures_parts: bool = True, max_figures: int = 0
    ) -> None:
        """`metric`: the name of the figure that its convergence rule is about; `measures_parts`: see `SpeedHistory`;
        `max_figures`: that are kept beside it, which only people look at."""
        self.losses = LossBuckets()
        self.metrics = LossBuckets()
        """Values of that figure; empty without one."""
        self.figures: dict[str, LossBuckets] = {} if metric is None else {metric: self.metrics}
        """Values of figures of evaluations by name: that one, and the first `max_figures` that were reported."""
        self._max_figures = max_figures + len(self.figures)
        self.planned_rates = NO_RATES
        """Those that it is to have, as its tasks told last ..."""
        self.planned_rates_version = 0
        """... and how often they had told them by then."""
        self._rates = LossBuckets()
        self._newest_rate: tuple[int, float] | None = None
        self.speeds = SpeedHistory(mode, measures_parts=measures_parts)
        self.pauses = _Pauses()
        self.slow_workers = SlowWorkers()
        self.noise: deque[tuple[int, float]] = deque(maxlen=MAX_NOISE_SCALES)
        """Steps and noise scales of the gradients, the newest; empty where they are not measured."""
        self._noise_logs = LossBuckets()
        """Logarithms of all of them, as means over neighbouring steps."""
        self.compute_seconds = 0.0
        """Of all workers, without the first record of each membership ..."""
        self.computed_examples = 0
        """... and on so many examples ..."""
        self.computed_steps = 0
        """... in so many steps of single workers."""
        self.is_current = False
        """Whether all samples that were stored when the store was last asked have been added: the reader's to say."""
        self.last_id = 0
        """Of the newest sample seen: ask the store for those after it."""
        self.progressed_at: float | None = None
        """When a sample last took the job further than it had ever been."""
        self.longest_seconds = 0.0
        """Of one sample, however many steps it has."""
        self.nonfinite_since: int | None = None
        """The first step of the newest losses that are all NaN or infinite; None: the newest loss is finite."""
        self.nonfinite_steps = 0
        """So many steps have had such losses since."""
        self._furthest_step = -1
        self._begins: dict[int, int] = {}
        """Membership epoch → the step at which it began."""
        self._gpu_types: dict[int, str | None] = {}
        """Membership epoch → what its workers run on."""

    def noise_curve(self) -> tuple[tuple[float, float], ...]:
        """Steps and noise scales from the beginning on, thinned out."""
        return tuple((step, math.exp(log)) for step, log in zip(*self._noise_logs.points(), strict=True))

    def learning_rates(self) -> Rates:
        """Steps, counted from 0, and the learning rate of each; the last one is exact, those before it are means."""
        steps, rates = self._rates.points()
        if self._newest_rate is None:
            return steps, rates
        step, rate = self._newest_rate
        return (*steps[:-1], float(step)), (*rates[:-1], rate)

    def learn_planned_rates(self, planned: Rates, version: int) -> None:
        """Take the rates that the job is to have in place of those reported before."""
        self.planned_rates, self.planned_rates_version = planned, version

    def learn_memberships(self, memberships: Iterable[MembershipRecord]) -> None:
        """To be called before the samples are added: a membership that began further back undoes steps."""
        for membership in memberships:
            if membership.epoch not in self._begins:
                self._begins[membership.epoch] = membership.step
                self._gpu_types[membership.epoch] = membership.gpu_type
                if membership.lost_steps:
                    self.losses.roll_back(membership.step)
                    for figure in self.figures.values():
                        figure.roll_back(membership.step)
                    self._noise_logs.roll_back(membership.step)
                    self._roll_back_rates(membership.step)
                    if self.nonfinite_since is not None and self.nonfinite_since > membership.step:
                        self.nonfinite_since, self.nonfinite_steps = None, 0
                    while self.noise and self.noise[-1][0] > membership.step:
                        self.noise.pop()

    def add(self, samples: Iterable[SampleRecord]) -> None:
        """Count samples, in the order of their ids; those before `last_id` were counted already."""
        for sample in samples:
            if sample.id <= self.last_id:
                continue
            self.last_id = sample.id
            if sample.step > self._furthest_step:
                self._furthest_step, self.progressed_at = sample.step, sample.received_at
            self.speeds.add(sample, self._gpu_types.get(sample.membership_epoch))
            self.longest_seconds = max(self.longest_seconds, sample.seconds)
            self.slow_workers.add(sample)
            self.pauses.add(sample)
            self._add_computing(sample)
            if sample.step <= self._end_of(sample.membership_epoch):
                if sample.loss is not None:
                    self.losses.add(sample.step, sample.loss, sample.n_examples)
                    self._count_nonfinite(sample, sample.loss)
                self._add_figures(sample)
                self._add_noise(sample)
                self._add_rate(sample)

    def _count_nonfinite(self, sample: SampleRecord, loss: float) -> None:
        if math.isfinite(loss):
            self.nonfinite_since, self.nonfinite_steps = None, 0
            return
        if self.nonfinite_since is None:
            self.nonfinite_since = sample.step  # of the steps before it in the sample nothing is known
        self.nonfinite_steps = max(self.nonfinite_steps, sample.step - self.nonfinite_since + 1)

    def _add_computing(self, sample: SampleRecord) -> None:
        if sample.sequence != _FIRST_RECORD and sample.compute_seconds > 0:
            self.compute_seconds += sample.compute_seconds
            self.computed_examples += sample.n_examples
            self.computed_steps += steps_of(sample)

    def _add_figures(self, sample: SampleRecord) -> None:
        for name, value in (sample.metrics or {}).items():
            known = name in self.figures or len(self.figures) < self._max_figures
            if known and value is not None and math.isfinite(value):
                self.figures.setdefault(name, LossBuckets()).add(sample.step, value)

    def _add_rate(self, sample: SampleRecord) -> None:
        """Of the last step of the sample, which is counted from 0. All workers have the same: the first one's count."""
        if sample.learning_rate is not None and sample.rank == 0 and sample.step > 0:
            step = sample.step - 1
            self._rates.add(step, sample.learning_rate)
            if self._newest_rate is None or step >= self._newest_rate[0]:
                self._newest_rate = step, sample.learning_rate

    def _roll_back_rates(self, step: int) -> None:
        """Steps after the first `step` did not happen."""
        self._rates.roll_back(step - 1)
        if self._newest_rate is not None and self._newest_rate[0] >= step:
            steps, rates = self._rates.points()
            self._newest_rate = (int(steps[-1]), rates[-1]) if steps else None

    def _add_noise(self, sample: SampleRecord) -> None:
        scale = noise_scale(sample)
        if scale is not None and (not self.noise or sample.step > self.noise[-1][0]):
            self.noise.append((sample.step, scale))
            self._noise_logs.add(sample.step, math.log(scale))

    def _end_of(self, epoch: int) -> float:
        """The last step of this epoch that counts: a later one repeated what came after."""
        return min((step for later, step in self._begins.items() if later > epoch), default=math.inf)


# --- the noise of gradients ------------------------------------------------------------------------------------------


def noise_scale(sample: Sample) -> float | None:
    """tr(Σ)/|G|² in examples, as the sample's worker estimates it; None when it told none, or noise hides it."""
    if sample.gradients is None:
        return None
    square, variance = sample.gradients.square, sample.gradients.variance
    scale = variance / square if square > 0 and variance > 0 else math.inf
    return scale if math.isfinite(scale) else None


def newest_noise_scale(newest: Sequence[Sample]) -> float | None:
    """Of the newest sample that tells one."""
    told = [sample for sample in newest if noise_scale(sample) is not None]
    return noise_scale(max(told, key=lambda sample: (sample.membership_epoch, sample.sequence))) if told else None
