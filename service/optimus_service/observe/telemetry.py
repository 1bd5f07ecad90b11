"""What the samples of one job say, in bounded memory: its loss by step and its speed by size.

Fed incrementally with samples in the order of their ids. Its state can be kept and restored; feeding all samples again
gives the same, too: nothing here depends on when a sample was seen, or together with which.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Sequence
from dataclasses import astuple
from typing import Any, Final

from optimus_contract.limits import MAX_METRICS
from optimus_contract.telemetry import Gradients, Sample
from optimus_models.history import LossBuckets
from optimus_scheduler.model import Mode
from optimus_service.observe.speeds import FIRST_RECORD, Columns, Pauses, SpeedHistory, rows
from optimus_service.observe.stragglers import SlowWorkers
from optimus_service.observe.unsaved_work import LastStep, made_at
from optimus_service.store.records import Document, MembershipRecord, SampleBatch

MAX_NOISE_SCALES = 50
"""They are moving averages: old ones add nothing."""
_FIELDS: Final = (
    *("membership_epoch", "rank", "sequence", "workers", "servers", "at", "step", "n_steps", "updates", "global_batch"),
    *("loss", "learning_rate", "n_examples", "seconds", "data_seconds", "compute_seconds", "wait_seconds"),
    *("gradients", "metrics"),
)
"""What is read of samples."""
_COMPUTING_FIELDS: Final = ("sequence", "compute_seconds", "n_examples", "n_steps", "updates")
_PLAIN: Final = (
    *(
        "last_id",
        "progressed_at",
        "longest_seconds",
        "nonfinite_since",
        "nonfinite_steps",
        "_furthest_step",
        "_newest_rate",
        "_report",
    ),
    *("compute_seconds", "computed_examples", "computed_steps"),
)
"""Attributes of a history that are numbers, pairs of numbers or None."""

Rates = tuple[tuple[float, ...], tuple[float, ...]]
"""Steps, increasing, and the learning rate of each."""
NO_RATES: Rates = ((), ())


def newest_learning_rate(newest: Sequence[Sample]) -> float | None:
    """Of the newest sample that tells one."""
    reported = [sample for sample in newest if sample.learning_rate is not None]
    return max(reported, key=lambda sample: (sample.membership_epoch, sample.step)).learning_rate if reported else None


class JobHistory:
    """Everything a round needs of one job's samples."""

    def __init__(
        self, mode: Mode, metric: str | None = None, *, measures_parts: bool = True, max_evaluations: int = MAX_METRICS
    ) -> None:
        """`metric`: the name of the metric that its convergence rule is about; `measures_parts`: see `SpeedHistory`;
        `max_evaluations`: that are kept beside it, which only people look at."""
        self.turn = threading.Lock()
        """Of threads that add to it, or read more than a number of it."""
        self.losses = LossBuckets()
        self.metrics = LossBuckets()
        """Values of that metric; empty without one."""
        self.evaluations: dict[str, LossBuckets] = {} if metric is None else {metric: self.metrics}
        """Values of evaluation metrics by name: that one, and the first `max_evaluations` that were reported."""
        self._max_evaluations = max_evaluations + len(self.evaluations)
        self.planned_rates = NO_RATES
        """Those that it is to have, as its tasks told last ..."""
        self.planned_rates_version = 0
        """... and how often they had told them by then."""
        self._rates = LossBuckets()
        self._newest_rate: tuple[int, float] | None = None
        self._learning_rates: Rates | None = NO_RATES
        """What `learning_rates` says; None: to be made anew."""
        self.speeds = SpeedHistory(mode, measures_parts=measures_parts)
        self.pauses = Pauses()
        self.slow_workers = SlowWorkers()
        self.noise: list[tuple[int, float]] = []
        """Steps and noise scales of the gradients, the newest `MAX_NOISE_SCALES`; empty where they are not measured."""
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
        self.last_steps: dict[int, LastStep] = {}
        """Membership epoch → the furthest of its steps, whether it had been made in an earlier epoch or not;
        without epochs in which none came."""
        self.longest_seconds = 0.0
        """Of one sample, however many steps it has."""
        self.nonfinite_since: int | None = None
        """The first step of the newest losses that are all NaN or infinite; None: the newest loss is finite."""
        self.nonfinite_steps = 0
        """So many steps have had such losses since."""
        self._furthest_step = -1
        self._report = (0, -1, 0.0, 0.0, 0.0)
        """The newest membership epoch with samples, how far it has come, when the report came that tells so, and the
        seconds before that and before the one before it; 0: not known. (One attribute: with 30 each history takes
        much more memory.)"""
        self._begins: dict[int, int] = {}
        """Membership epoch → the step at which it began."""
        self._gpu_types: dict[int, str | None] = {}
        """Membership epoch → what its workers run on."""

    @property
    def report_seconds(self) -> float:
        """Seconds between two reports of further steps of late. The shorter one of two: after the other it stood still,
        or was paused. 0: not known."""
        gap, earlier = self._report[3:]
        return min(gap, earlier) if earlier else gap

    def noise_curve(self) -> tuple[tuple[float, float], ...]:
        """Steps and noise scales from the beginning on, thinned out."""
        return tuple((step, math.exp(log)) for step, log in zip(*self._noise_logs.points(), strict=True))

    def learning_rates(self) -> Rates:
        """Steps, counted from 0, and the learning rate of each; the last one is exact, those before it are means.

        The very same while nothing is added, like the points of losses.
        """
        if self._learning_rates is None:
            steps, rates = (each.tolist() for each in self._rates.arrays())
            if self._newest_rate is not None:
                steps[-1:], rates[-1:] = [float(self._newest_rate[0])], [self._newest_rate[1]]
            self._learning_rates = tuple(steps), tuple(rates)
        return self._learning_rates

    def learn_planned_rates(self, planned: Rates, version: int) -> None:
        """Take the rates that the job is to have in place of those reported before."""
        self.planned_rates, self.planned_rates_version = planned, version

    def learn_memberships(self, memberships: Iterable[MembershipRecord]) -> None:
        """To be called before the samples are added: a membership that began further back undoes steps."""
        for membership in memberships:
            if membership.epoch not in self._begins:
                self._begins[membership.epoch] = membership.step
                if membership.cause in ("resume", "coordinator_restart"):
                    self.nonfinite_since, self.nonfinite_steps = None, 0  # what made it so may be mended by now
                self._gpu_types[membership.epoch] = membership.gpu_type
                if membership.lost_steps:
                    self.losses.roll_back(membership.step)
                    self.speeds.roll_back(membership.step)
                    for values in self.evaluations.values():
                        values.roll_back(membership.step)
                    self._noise_logs.roll_back(membership.step)
                    self._roll_back_rates(membership.step)
                    if self.nonfinite_since is not None and self.nonfinite_since > membership.step:
                        self.nonfinite_since, self.nonfinite_steps = None, 0
                    while self.noise and self.noise[-1][0] > membership.step:
                        self.noise.pop()

    def add(self, batches: Iterable[SampleBatch]) -> None:
        """Count samples, in the order of their ids; those up to `last_id` were counted already."""
        columns: dict[str, list[Any]] = {name: [] for name in _FIELDS}
        for batch in batches:
            new = batch.after(self.last_id)
            if not len(new):
                continue
            self.last_id = new.last_id
            furthest = max(new.column("step"))
            if furthest > self._furthest_step:
                self._furthest_step, self.progressed_at = furthest, new.received_at
            self._note_last_step(new)
            for name, values in columns.items():
                values.extend(new.column(name))
        if columns["step"]:
            self._add_columns(columns)

    def _note_last_step(self, batch: SampleBatch) -> None:
        """When the furthest step of the newest epoch came, and when it was made."""
        places = list(zip(batch.column("membership_epoch"), batch.column("step"), strict=True))
        furthest = max(places)
        epoch, step, came, gap, earlier = self._report
        if furthest > (epoch, step):
            if epoch == furthest[0] and came > 0.0:
                gap, earlier = max(batch.received_at - came, 0.0), gap
            self._report = *furthest, batch.received_at, gap, earlier
            at = made_at(batch.column("at")[places.index(furthest)], batch.received_at)
            self.last_steps[furthest[0]] = LastStep(at, self.report_seconds)

    def _add_columns(self, columns: Columns) -> None:
        self.longest_seconds = max(self.longest_seconds, *columns["seconds"])
        if self.speeds.measures_parts:
            paced = self.pauses.join(columns)
        else:
            paced = columns = self.pauses.split(columns)
        self.speeds.add(paced, self._gpu_types)
        self.slow_workers.add(columns)
        self.pauses.add(paced)
        self._add_computing(columns)
        counted = self._counted(columns)
        self._add_losses(counted)
        self._add_evaluations(counted)
        self._add_noise(counted)
        self._add_rates(counted)

    def _counted(self, columns: Columns) -> Columns:
        """Those samples whose steps no later epoch has done again."""
        epochs = columns["membership_epoch"]
        ends = {epoch: self._end_of(epoch) for epoch in set(epochs)}
        if all(end == math.inf for end in ends.values()):
            return columns
        places = [place for place, step in enumerate(columns["step"]) if step <= ends[epochs[place]]]
        return {name: [values[place] for place in places] for name, values in columns.items()}

    def _add_losses(self, columns: Columns) -> None:
        names = ("step", "loss", "n_examples", "at", "n_steps", "seconds")
        reported = [row for row in rows(columns, names) if row[1] is not None]
        if not reported:
            return
        placed = map(_at_its_middle, reported) if self.speeds.measures_parts else reported
        steps, losses, n_examples, moments, *_ = zip(*placed, strict=True)
        self.losses.add_many(steps, losses, n_examples, moments)
        if self.nonfinite_since is not None or not all(map(math.isfinite, losses)):
            for step, loss, *_ in reported:
                self._count_nonfinite(step, loss)

    def _count_nonfinite(self, step: int, loss: float) -> None:
        if math.isfinite(loss):
            self.nonfinite_since, self.nonfinite_steps = None, 0
            return
        if self.nonfinite_since is None:
            self.nonfinite_since = step  # of the steps before it in the sample nothing is known
        self.nonfinite_steps = max(self.nonfinite_steps, step - self.nonfinite_since + 1)

    def _add_computing(self, columns: Columns) -> None:
        for sequence, seconds, n_examples, n_steps, updates in rows(columns, _COMPUTING_FIELDS):
            if sequence != FIRST_RECORD and seconds > 0:
                self.compute_seconds += seconds
                self.computed_examples += n_examples
                self.computed_steps += n_steps if updates is None else updates

    def _add_evaluations(self, columns: Columns) -> None:
        if not any(columns["metrics"]):
            return
        for step, at, metrics in rows(columns, ("step", "at", "metrics")):
            for name, value in (metrics or {}).items():
                known = name in self.evaluations or len(self.evaluations) < self._max_evaluations
                if known and value is not None and math.isfinite(value):
                    self.evaluations.setdefault(name, LossBuckets()).add(step, value, at=at)

    def _add_rates(self, columns: Columns) -> None:
        """Of the last step of each sample, counted from 0. All workers have the same rates: the first one's count."""
        reported = [
            (step - 1, rate)
            for step, rank, rate in rows(columns, ("step", "rank", "learning_rate"))
            if rank == 0 and rate is not None and step > 0
        ]
        if not reported:
            return
        self._learning_rates = None
        self._rates.add_many(*zip(*reported, strict=True))
        for step, rate in reported:
            if self._newest_rate is None or step >= self._newest_rate[0]:
                self._newest_rate = step, rate

    def _roll_back_rates(self, step: int) -> None:
        """Steps after the first `step` did not happen."""
        self._learning_rates = None
        self._rates.roll_back(step - 1)
        if self._newest_rate is not None and self._newest_rate[0] >= step:
            steps, rates = self._rates.arrays()
            self._newest_rate = (int(steps[-1]), float(rates[-1])) if len(steps) else None

    def _add_noise(self, columns: Columns) -> None:
        if not any(columns["gradients"]):
            return
        reported = []
        for step, gradients in rows(columns, ("step", "gradients")):
            scale = _scale_of(gradients)
            if scale is not None and (not self.noise or step > self.noise[-1][0]):
                self.noise.append((step, scale))
                reported.append((step, math.log(scale)))
        if reported:
            del self.noise[:-MAX_NOISE_SCALES]
            self._noise_logs.add_many(*zip(*reported, strict=True))

    def _end_of(self, epoch: int) -> float:
        """The last step of this epoch that counts: a later one repeated what came after."""
        return min((step for later, step in self._begins.items() if later > epoch), default=math.inf)

    # --- kept beyond the process ----------------------------------------------------------------------------------

    def state(self) -> Document:
        """All that is known but the planned rates, for `restore`; values are what JSON has, and arrays of numpy."""
        return {
            "plain": {name: getattr(self, name) for name in _PLAIN},
            "noise": list(self.noise),
            "begins": list(self._begins.items()),
            "last_steps": list(self.last_steps.items()),
            "gpu_types": list(self._gpu_types.items()),
            "losses": self.losses.state(),
            "rates": self._rates.state(),
            "noise_logs": self._noise_logs.state(),
            "figures": [(name, values.state()) for name, values in self.evaluations.items()],
            "speeds": self.speeds.state(),
            "slow_workers": self.slow_workers.state(),
            "pauses": astuple(self.pauses),
        }

    def restore(self, state: Document) -> None:
        """Know what the history knew that had this state and was made with the same arguments."""
        plain = dict(state["plain"])
        if (known := plain.pop("_furthest_of_epoch", None)) is not None:  # as an older release kept it
            plain["_report"] = (*known, 0.0, 0.0, 0.0)
        for name, value in plain.items():
            setattr(self, name, tuple(value) if isinstance(value, list) else value)
        self.noise.extend((step, scale) for step, scale in state["noise"])
        self.last_steps = {
            epoch: LastStep(*step) if isinstance(step, list | tuple) else LastStep(step)  # as an older release kept it
            for epoch, step in state.get("last_steps", ())
        }
        self._begins, self._gpu_types = dict(state["begins"]), dict(state["gpu_types"])
        self.losses = LossBuckets.of_state(*state["losses"])
        self._rates, self._learning_rates = LossBuckets.of_state(*state["rates"]), None
        self._noise_logs = LossBuckets.of_state(*state["noise_logs"])
        for name, values in state["figures"]:
            is_target = self.evaluations.get(name) is self.metrics
            self.evaluations[name] = LossBuckets.of_state(*values)
            self.metrics = self.evaluations[name] if is_target else self.metrics
        self.speeds.restore(state["speeds"])
        self.slow_workers.restore(state["slow_workers"])
        self.pauses = Pauses.of_state(state["pauses"])


# --- the noise of gradients ------------------------------------------------------------------------------------------


def noise_scale(sample: Sample) -> float | None:
    """tr(Σ)/|G|² in examples, as the sample's worker estimates it; None when it told none, or noise hides it."""
    return _scale_of(sample.gradients)


def _scale_of(gradients: Gradients | None) -> float | None:
    if gradients is None:
        return None
    square, variance = gradients.square, gradients.variance
    scale = variance / square if square > 0 and variance > 0 else math.inf
    return scale if math.isfinite(scale) else None


def newest_noise_scale(newest: Sequence[Sample]) -> float | None:
    """Of the newest sample that tells one."""
    reported = [sample for sample in newest if noise_scale(sample) is not None]
    return (
        noise_scale(max(reported, key=lambda sample: (sample.membership_epoch, sample.sequence))) if reported else None
    )


def _at_its_middle(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A loss of our own loop, which is the mean over the steps of a sample, at the middle one and when that was made.

    At the last one the curve would seem higher than it is, the more so the more steps are in a sample: a run with many
    in each would look unlike the same run with few. `row`: step, loss, examples, when, number of steps, seconds.
    """
    step, loss, n_examples, at, n_steps, seconds = row
    before = max(min(n_steps, step) - 1, 0) // 2
    return step - before, loss, n_examples, at - seconds * before / n_steps, n_steps, seconds
