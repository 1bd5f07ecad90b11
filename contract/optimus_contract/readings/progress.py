"""How far a script is: readings of all channels become steps of the job. Pure.

A reading counts if no better channel has given steps. Steps count as the script counts them, with one exception: a
script that computes with the same batch in each process makes fewer steps with more processes. When the number of steps
after which it ends is known to have changed so, its steps are counted as steps of the job's first membership, so that
the loss and the end stay functions of the same step. With `scaling: weak` steps stay those of the script here: the
coordinator knows what each of them counts as, whatever the script did in memberships before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from optimus_contract.limits import MAX_COUNT, MAX_METRICS
from optimus_contract.readings.reading import NOTHING, Announced, Channel, Reading

METRIC_NAME_LENGTH = 100
PATIENCE_SECONDS = 10.0
"""A script that reports losses without steps gets so long to report a step, before its losses count as steps: from its
start while it reports, after its newest loss when it is silent."""
SET_BACK_SECONDS = 180.0
"""A reading that is so much older than the last was made after somebody had set the machine's clock back. What is
logged to files comes up to two minutes late."""
BARE_SECONDS = 20.0
"""A bar that nothing shows to be of the training counts if it still moves after so long."""
TOLD_WITHOUT = 2
"""After so many steps of another channel while such a bar stands still, it is not of the training."""
MOST_HELD = 2000
"""Readings that wait for that; with more, losses count as steps at once."""
NEAR = 0.1
"""How close to the known step, as a part of it, misplaced processes begin: they lost at most a checkpoint's steps."""


@dataclass(frozen=True, slots=True)
class Advance:
    """What a reading added: `n_steps` steps in `seconds`, which end with `step`."""

    at: float
    """POSIX seconds."""
    step: int
    n_steps: int
    """0: only where the processes go on from."""
    seconds: float
    loss: float | None = None
    """The newest loss; None: none was reported since the last advance."""
    learning_rate: float | None = None
    """The newest; None: none was reported since the last advance."""
    epoch: float | None = None
    examples: int | None = None
    """Training examples of these steps, where they are known."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    is_first: bool = False
    """Of these processes: it says where they go on from."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What the readings so far say about the script as a whole; None: not known."""

    channel: Channel | None = None
    total_steps: int | None = None
    steps_per_epoch: float | None = None
    resumes: bool | None = None
    """False: it began anew when it was started again, and has not gone on since; it may have had no checkpoint yet."""
    total_workers: int | None = None
    """The workers of the processes that reported `total_steps`."""
    fixed_workers: int | None = None
    """The only number of workers at which the script can go on; None: any."""
    checkpoint_every_seconds: float | None = None
    checkpoint_write_seconds: float | None = None
    first_epoch: int | None = None
    """What it calls its first epoch: 0 or 1."""
    newest_epoch: int | None = None
    """Which epoch, from 0, it was in last ..."""
    newest_epoch_began: int | None = None
    """... with which step that one began, ..."""
    newest_epoch_steps: int | None = None
    """... how long it is, ..."""
    epoch_before_began: int | None = None
    """... and with which step the epoch before it began."""
    assumes_no_loss: bool | None = None
    """That step was not reported: it is assumed that no step was lost before."""
    unread_line: str | None = None
    """It prints such lines, and no step is recognised."""
    tells_no_step: bool | None = None
    """It reports losses or epochs only, which count as steps."""
    first_step: int | None = None
    """The first one that its very first processes reported."""
    began_at: int | None = None
    """The step that these went on from: above 0, of a checkpoint from before the job. None: they have reported one step
    at most, and not the first one."""
    steps_apart: int | None = None
    """The fewest steps between two that its newest processes reported."""
    counts_from_zero: bool | None = None
    """It calls its first step 0, and the last of 500 is 499."""

    @property
    def told_every(self) -> int | None:
        """It reports only each so many steps, and may make others unseen; None: each, or that is not known."""
        apart = None if self.steps_apart is None or self.channel is Channel.CLIENT else int(self.steps_apart)
        return apart if apart is not None and apart > 1 else None


class Progress:
    """The steps of one worker's processes, from their start to their end."""

    def __init__(
        self,
        started_at: float,
        version: int,
        learned: Learned = Learned(),
        batch: int | None = None,
        weight: int | None = None,
        n_workers: int = 1,
        announced: Announced = NOTHING,
    ) -> None:
        """`started_at`: POSIX seconds; `version`: steps completed as far as was known; `learned`: from processes before
        these; `batch`: the global batch in examples, where the job names it; `weight`: with weak scaling, what each
        step of these processes counts as; `n_workers`: that train together;
        `announced`: how long the training is meant to last, where it does not say so with its steps."""
        self.learned = learned
        self.stopped_at: int | None = None
        """The step at which the script reported that it stops."""
        self.metrics: dict[str, float] = {}
        """The newest figures of evaluations."""
        self.step: int | None = None
        """Steps completed, as the job counts them; None: no reading has it."""
        self._known_total = learned.total_steps
        """Of the first membership: what steps are counted in."""
        self._total: int | None = None
        """Of these processes."""
        self._each_seen: int | None = None
        """Steps of an epoch, as the readings say."""
        self._known_each = learned.steps_per_epoch
        self._each: int | None = None
        """The same for the steps of an epoch."""
        self._version = version
        self._batch, self._weight, self._n_workers = batch, weight, n_workers
        self.is_misplaced = False
        """These processes went on from the wrong step: what they do does not count."""
        self.last_at = started_at
        """POSIX seconds of the newest advance; before the first one, when the processes were started."""
        self._trust = Channel.PRINTED.trust
        self._counts = False
        """Losses are counted as steps."""
        self._named_epoch: int | None = None
        """How many epochs have been completed by the end of the one that was named last."""
        self._passes: _Passes | None = None
        """What such losses say of the passes over the data."""
        self._announced = announced
        self._has_reported_total = False
        """The newest total is the training's own."""
        self._held: list[Reading] = []
        """The readings without a step, while it is not known yet whether another channel reports steps."""
        self._bare: list[Reading] = []
        """Those with one, while it is not known yet whether it is of the training, and of other channels since."""
        self._loss: float | None = None
        self._rate: float | None = None
        self._planned_rates: tuple[tuple[int, float], ...] = ()
        self._unreported: dict[str, float] = {}
        self._first: tuple[int, float] | None = None
        """The first step that these processes reported, and when."""
        self._apart: int | None = None
        """The fewest steps between two of them."""
        self._first_has_loss = False
        self._is_beginning_open = False
        """Where these processes began, their second step tells: all steps before the first may be theirs, or none."""

    @property
    def seconds_per_step(self) -> float | None:
        """What a step took between the first and the newest one that these processes reported; None: not known."""
        if self._first is None or self.step is None or self.step <= self._first[0]:
            return None
        seconds = self.last_at - self._first[1]
        return seconds / (self.step - self._first[0]) if seconds > 0 else None

    def add(self, reading: Reading) -> list[Advance]:
        """Take in a reading; what it added, oldest first: also of earlier ones whose steps are known only now."""
        is_told = reading.step is not None and reading.channel in (Channel.CLIENT, Channel.KUBEFLOW)
        if reading.replaces or is_told:
            self._bare = [each for each in self._bare if not each.is_bare]
        is_bare = reading.is_bare and self.step is None and reading.total_steps not in (None, self._known_total)
        if is_bare or (self._bare and reading.step is not None and reading.channel is not Channel.PRINTED):
            return self._wait(reading)
        found = self._with_bare() if reading.step is not None else []
        if self._held and self.step is None and not self._bare:
            is_over = reading.at >= self.last_at + PATIENCE_SECONDS or len(self._held) >= MOST_HELD
            if is_over and reading.step is None and _is_counted(reading):
                return [*found, *self.settle(), *self._added(reading)]
        return [*found, *self._added(reading)]

    def _wait(self, reading: Reading) -> list[Advance]:
        """A bar that may not be of the training moves, or another channel tells a step beside it: with one more of
        these, and the bar standing still, it is not. An epoch's figures come once in a bar of the training."""
        self._bare.append(reading)
        if not any(each.is_bare for each in self._bare[-TOLD_WITHOUT:]):
            self._bare = [each for each in self._bare if not each.is_bare]
            return self._with_bare()
        is_over = reading.is_bare and reading.at >= self._bare[0].at + BARE_SECONDS
        return self._with_bare() if is_over or len(self._bare) >= MOST_HELD else []

    def _with_bare(self) -> list[Advance]:
        """What a bar has added that counts now, each reading at its own time."""
        bare, self._bare = self._bare, []
        return [found for each in bare for found in self._added(each)]

    def _added(self, reading: Reading) -> list[Advance]:
        advance = self._add(reading)
        return [] if advance is None else [advance]

    def _add(self, reading: Reading) -> Advance | None:
        if not (_is_finite(reading.epoch) and _is_finite(reading.total_epochs)):
            reading = replace(reading, epoch=None, total_epochs=None)
        if reading.resumes or reading.went_on:
            self._learn(resumes=True)
        if reading.first_epoch is not None and self.learned.first_epoch is None:
            self.learned = replace(self.learned, first_epoch=reading.first_epoch)
        if reading.rank not in (None, 0) and reading.channel is Channel.CLIENT:
            return None  # all processes make the same steps; the first one speaks for them
        if reading.announced is not None:
            self._announced = reading.announced.over(self._announced)
        if reading.channel.trust > self._trust and self._counts_less(reading):
            reading = replace(reading, step=None, total_steps=None)
        reading = self._with_announced(self._with_steps_before(reading))
        self._add_metrics(reading)
        if reading.channel.trust < self._trust and not self._agrees(reading):
            return None
        step = self._step_of(reading)
        if self.is_misplaced or self._begins_misplaced(reading, step):
            return None
        if reading.loss is not None:
            self._loss = reading.loss
        if reading.learning_rate is not None:
            self._rate = reading.learning_rate
        self._planned_rates = reading.planned_rates or self._planned_rates
        if reading.stopped and step is not None:
            self.stopped_at = step
            self._learn(resumes=True)
        if step is None:
            return None
        if reading.channel.trust >= self._trust:
            self._trust = reading.channel.trust
            self._learn_from(reading, step)
        if self.step is not None and step <= self.step:
            return None
        return self._advance(reading, step)

    def settle(self) -> list[Advance]:
        """No other channel reports steps, or the processes have ended: what came without a step counts now, each
        reading at its own time."""
        found = self._with_bare()
        held, self._held = self._held, []
        if self.step is not None or self.is_misplaced or not any(_is_counted(each) for each in held):
            return found
        self.learned = replace(self.learned, tells_no_step=True)
        self._passes, self._loss, self._rate, self._unreported = None, None, None, {}
        self._named_epoch = None
        return [found for each in held for found in self._added(replace(each, announced=None))]

    def settle_if_silent(self, now: float) -> list[Advance]:
        """What `settle` adds, once no loss has come for a while; `now`: POSIX seconds."""
        newest = next((each for each in reversed(self._held) if each.loss is not None), None)
        is_over = newest is not None and now >= newest.at + PATIENCE_SECONDS and not self._bare
        return self.settle() if is_over else []

    @property
    def total_steps(self) -> int | None:
        """After how many steps the training ends, also if none was made yet; None: it has not been said."""
        return self.learned.total_steps or self._total

    @property
    def has_old_total(self) -> bool:
        """These processes have not reported yet after how many steps they end; those before them had."""
        return self.learned.total_steps is not None and self._total is None

    def take_planned_rates(self) -> list[tuple[int, float]]:
        """The learning rates that these processes plan, by steps as the job counts them; each plan is given once."""
        planned, self._planned_rates = self._planned_rates, ()
        known, total = self._known_total, self._total
        if self._weight is not None or known is None or total is None or known == total:
            return list(planned)
        return [(round(step * known / total), rate) for step, rate in planned]

    def _agrees(self, reading: Reading) -> bool:
        """Whether a channel that is trusted less counts the same steps: a progress bar is newer than rare reports."""
        return reading.step is not None and self._total is not None and reading.total_steps == self._total

    def _counts_less(self, reading: Reading) -> bool:
        """Whether a channel that would be trusted more counts something else than steps: a SummaryWriter that logs once
        an epoch, by its number, beside printed steps. What is logged to files comes late, and steps were made since:
        the number of an epoch is less than half of those known when it was logged. `optimus_client` is believed."""
        if self.step is None or self._counts or not reading.step or reading.channel is Channel.CLIENT:
            return False  # step 0 says nothing
        since, pace = max(0.0, self.last_at - reading.at), self.seconds_per_step
        known = self.step - (0.0 if pace is None else since / pace)
        return reading.step < known / 2

    def _with_announced(self, reading: Reading) -> Reading:
        """With the end that was announced beside the steps, if the reading names none; wrong ones are forgotten."""
        step, known = reading.step, self._announced
        if reading.total_steps is not None or reading.corrects:
            self._has_reported_total = reading.total_steps is not None
        if step is None or self._has_reported_total or known == NOTHING:
            return reading
        each = reading.steps_per_epoch or self._each_seen
        if reading.may_be_whole and known.total_epochs != 1:
            each = None
        self._each_seen = each
        of_epochs = known.total_epochs * each if known.total_epochs and each else None
        total = min((each for each in (known.total_steps, of_epochs) if each), default=None)
        if total is None or total > MAX_COUNT:
            return reading
        if step <= total:
            return replace(reading, total_steps=total, corrects=reading.corrects or self._total not in (None, total))
        self._announced = NOTHING
        return replace(reading, corrects=True)

    def _with_steps_before(self, reading: Reading) -> Reading:
        """With the steps that the epochs before took. A training that ends after a number of steps has shorter epochs
        with more processes; its count in an epoch says nothing of those before, which may have been longer."""
        into, each, step = reading.steps_into_epoch, reading.steps_per_epoch, reading.step
        meant = self._announced.total_steps
        if into is None or not each or step is None or step < into:
            return reading
        if into == 0 and self.step is None and reading.loss is None:
            return replace(reading, step=None)  # bars begin with 0, wherever in the epoch the processes go on
        if self._weight is not None:
            return reading
        if reading.total_steps is not None or meant is None or self._known_total not in (None, meant):
            return reading  # its end is a number of epochs
        self.learned = known = self._in_epoch((step - into) // each, each, into)
        step = (known.newest_epoch_began or 0) + into
        return replace(reading, step=min(step, meant) if known.assumes_no_loss else step)

    def _in_epoch(self, epoch: int, each: int, into: int) -> Learned:
        """What is known, in an epoch (from 0) of `each` steps.

        Lightning begins the same epoch anew if it is shorter now than the part of it that was done, and does not say at
        which step. It stopped at a checkpoint or soon after: at the newest step that is known, as far as is known.
        """
        known = _known_in_epoch(epoch, each, self.learned)
        began = known.newest_epoch_began or 0
        begins = self.step is None and epoch == self.learned.newest_epoch and into <= max(1, NEAR * each)
        if begins and self._version - began >= each:
            return replace(known, newest_epoch_began=self._version, assumes_no_loss=True)
        return known

    # --- steps -------------------------------------------------------------------------------------------------------

    def _step_of(self, reading: Reading) -> int | None:
        """The step of the job that a reading names; one that has only a loss is a step."""
        step = reading.step
        if reading.corrects:
            self._total = self._known_total = None
            self.learned = replace(self.learned, total_steps=None, total_workers=None, steps_per_epoch=None)
        if reading.total_steps is not None and reading.total_steps > 0:
            self._total = reading.total_steps
        if step is None:
            return self._counted(reading)
        if self._counts and reading.channel.trust >= self._trust:
            self._counts, self._known_total = False, None  # they were counted in epochs, or in losses
            self._total = reading.total_steps if reading.total_steps and reading.total_steps > 0 else None
            self.learned = replace(
                self.learned, total_steps=None, total_workers=None, steps_per_epoch=None, tells_no_step=None
            )
        if step <= 0 or step > MAX_COUNT:
            if step == 0 and reading.loss is not None and self.step is None:
                self._told_zero(reading.at)
            return None  # nothing is done yet: bars begin with 0, wherever the processes go on from
        known, total = self._known_total, self._total
        if self._weight is not None:
            return step
        if known is not None and total is not None:
            return step if known == total else round(step * known / total)
        known_each, each = self._known_each, reading.steps_per_epoch or self._each
        self._each = each
        if known_each is None or not each or abs(each - known_each) <= NEAR * known_each:
            return step  # a number of steps that was not said, but seen, is not exact
        return round(step * known_each / each)

    def _begins_misplaced(self, reading: Reading, step: int | None) -> bool:
        """Whether this reading, before the first step, shows that the processes went on from the wrong step."""
        known, total, workers = self._known_total, self._total, self.learned.total_workers
        if self.step is not None or self._weight is not None or not self._version:
            return False
        if known is None or total is None or workers in (None, self._n_workers):
            return False
        if abs(total - known) <= NEAR * known:
            return False  # a batch that the processes do not divide evenly makes a few steps more or less
        # The one speaker of Kubeflow's protocol, transformers, resumes at its last step if it resumes.
        if reading.channel is not Channel.KUBEFLOW or self.learned.resumes is False:
            if step is None or reading.step is None:
                return False
            distance = abs(reading.step - self._version)
            if distance >= abs(step - self._version) or distance > NEAR * self._version:
                return False
        self.is_misplaced = True
        self.learned = replace(self.learned, fixed_workers=workers)
        return True

    def _counted(self, reading: Reading) -> int | None:
        """A reading without a step: of an epoch, which then is a step, or of a loss, which then is one."""
        epoch = self._epoch_of(reading)
        may_come = reading.at < self.last_at + PATIENCE_SECONDS or (bool(self._bare) and len(self._held) < MOST_HELD)
        if self.step is None and not self.learned.tells_no_step and may_come:
            if _is_counted(reading) or reading.metrics or reading.learning_rate is not None:
                self._held.append(reading)
            return None  # another channel may be about to tell steps
        # Of MLflow, which others' steps are not behind: those before, too, were counted, by whoever stored them.
        counts = self._counts or (reading.channel is Channel.MLFLOW and self._first is None)
        if (reading.loss is None and epoch is None) or (self.step is not None and not counts):
            return None
        passes = reading.epoch if epoch is None else None
        if passes is not None and self._passes is not None and passes <= self._passes.newest:
            return None  # a summary of what was told before
        count = (self._version if self.learned.resumes is True else 0) if self.step is None else self.step
        if passes is not None:
            begun = self._passes or _Passes(passes, count, passes, count)
            self._passes = replace(begun, newest=passes, count_before_newest=count)
        self._counts = True
        self.learned = replace(self.learned, tells_no_step=True)
        if epoch is not None:
            self._total = self._end_of_epochs(reading)
        else:
            # Once epochs are named they are the steps: `Final loss: 0.1` below the last one is of no other.
            most = MAX_COUNT if passes is not None or self._named_epoch is None else self._named_epoch
            epoch = min(count + 1, most)
            self._end_by_passes(reading, epoch)
        if self._total is not None and epoch > self._total:  # `Epoch 0/24` may be the first of 25
            self._forget_total()
        return epoch if epoch > 0 else None

    def _end_by_passes(self, reading: Reading, count: int) -> None:
        """Losses count as steps, and come with the passes over the data: how many there will be is seen by both."""
        total_epochs = self._announced.total_epochs or reading.total_epochs
        if self._passes is None or total_epochs is None or (self._version > 0 and self.learned.total_steps is not None):
            return
        total = self._passes.end(total_epochs, self._total)
        if total is not None and count <= total <= MAX_COUNT and total != self._total:
            self._forget_total()
            self._total = total

    def _forget_total(self) -> None:
        self._total = self._known_total = None
        self.learned = replace(self.learned, total_steps=None, total_workers=None)

    def _epoch_of(self, reading: Reading) -> int | None:
        """How many epochs have been completed, if a reading names one: with a figure at its end, alone before it."""
        if reading.epoch is None or reading.epoch != int(reading.epoch) or not 0 <= reading.epoch <= MAX_COUNT:
            return None
        if reading.channel in (Channel.PRINTED, Channel.KUBEFLOW) and isinstance(reading.epoch, float):
            return None  # `1.0` after `0.75` is so many passes over the data
        if reading.epoch == 0:
            self.learned = replace(self.learned, first_epoch=0)
        begun = int(reading.epoch) - (1 if self.learned.first_epoch is None else self.learned.first_epoch)
        self._named_epoch = begun + 1
        return begun + (reading.loss is not None or bool(reading.metrics))

    def _end_of_epochs(self, reading: Reading) -> int | None:
        """How many epochs there are, where they count as steps."""
        total, announced = reading.total_epochs, self._announced.total_epochs
        if total is None or announced == total + 1:  # `Epoch 0/24` may be the first of 25
            total = announced
        return int(total) if total is not None and 0 < total <= MAX_COUNT else self._total

    def _advance(self, reading: Reading, step: int) -> Advance:
        is_first = self.step is None
        before = self._begins_at(reading, step) if self.step is None else self.step
        if reading.went_on:
            before = max(before, step - (reading.steps_into_epoch or 0))  # the steps between are not theirs
        n_steps = step - before
        seconds = max(0.0, reading.at - self.last_at)
        each = reading.examples or self._batch
        loss, self._loss = self._loss, None
        rate, self._rate = self._rate, None
        metrics, self._unreported = self._unreported, {}
        if is_first and self._version > 0:
            self._judge(before)
        was_set_back = reading.at < self.last_at - SET_BACK_SECONDS
        self.step, self.last_at = step, reading.at if was_set_back else max(self.last_at, reading.at)
        self._learn_beginning(n_steps, has_loss=loss is not None)
        if self._first is None or was_set_back or reading.went_on:
            self._first = step, self.last_at
        elif self._apart is None or n_steps < self._apart:
            self._apart = n_steps
            self.learned = replace(self.learned, steps_apart=n_steps)
        return Advance(
            at=reading.at,
            step=step,
            n_steps=n_steps,
            seconds=seconds,
            loss=loss,
            learning_rate=rate,
            epoch=reading.epoch,
            examples=None if each is None else each * n_steps,
            metrics=metrics,
            is_first=is_first,
        )

    def _begins_at(self, reading: Reading, step: int) -> int:
        """Where the processes go on from, by their first step: what was known, unless they count from further back."""
        told = step if reading.step is None else reading.step
        if self._version == 0 and self.learned.first_step is None:
            self.learned = replace(self.learned, first_step=told, began_at=0 if step == 1 else None)
        is_as_first = told == self.learned.first_step
        began = self.learned.began_at
        self._is_beginning_open = is_as_first and began is None
        if step <= self._version and is_as_first and (began or self.learned.resumes is not True):
            return began or 0  # as those that began there
        # A step without a loss, not beyond what is known, is where the processes begin, and not one of theirs.
        begins = reading.loss is None and step <= self._version
        # One that reports each tenth step has made nine before the first that it reports.
        return step if begins else max(0, min(self._version, step - (self.learned.told_every or 1)))

    def _told_zero(self, at: float) -> None:
        """The first step was reported, as step 0."""
        self.learned = replace(self.learned, counts_from_zero=True)
        if self._first is None:
            self._first, self._first_has_loss = (0, at), True

    # --- what is learned ---------------------------------------------------------------------------------------------

    def _learn_beginning(self, n_steps: int, *, has_loss: bool) -> None:
        """Where the very first processes began, by the first two steps that they, or others that began as they did,
        have reported: a script that began with step 0 reports its first one after about as many as lie between two."""
        if self._first is None:
            self._first_has_loss = has_loss
            return
        if not self._is_beginning_open:
            return
        self._is_beginning_open = False
        first = self._first[0]
        # A step without a loss, before those with one, is where they began.
        begins = has_loss and not self._first_has_loss
        began = (first if begins else first - n_steps) if first >= 2 * n_steps else 0
        self.learned = replace(self.learned, began_at=began)
        if began and self.learned.resumes is False:
            self.learned = replace(self.learned, resumes=None)  # judged when it seemed to have begun with step 0

    def _judge(self, before: int) -> None:
        """Whether processes that were started again go on where the ones before had come."""
        began = self.learned.began_at or 0
        if before == began > 0:
            return  # from the checkpoint that they began from: they may not have written one yet
        if self._version - began < 10:
            return
        # They may have begun anew before the first checkpoint: who goes on later shows that there are some.
        if before - began >= (self._version - began) // 2:
            self._learn(resumes=True)
        elif self.learned.resumes is None:
            self._learn(resumes=False)

    def _learn_from(self, reading: Reading, step: int) -> None:
        is_weak = self._weight is not None
        total = self._total if is_weak else self._known_total or self._total
        if total is not None and (is_weak or self._known_total is None):
            self._known_total = total
            self._learn(total_steps=total)
            self.learned = replace(self.learned, total_workers=self._n_workers)
        each = known = self.learned.steps_per_epoch
        if reading.steps_per_epoch is not None and known is None:
            each = reading.steps_per_epoch
        elif is_weak and known is not None:
            pass  # from the first membership, in which all steps counted the same
        elif total is not None and reading.total_epochs is not None and reading.total_epochs > 0:
            each = total / reading.total_epochs
        elif each is None and reading.epoch and step > 0:
            # A printed epoch is a whole number that counts the present one; any other is how far the data was read.
            is_exact = reading.channel is not Channel.PRINTED or reading.epoch != int(reading.epoch)
            each = step / reading.epoch if is_exact and reading.epoch > 0 else None
        if each is not None and each is not known:
            each *= self._weight or 1
        if each is not None and 0 < each <= MAX_COUNT and math.isfinite(each):
            self._learn(steps_per_epoch=each)
        if self.learned.channel is not reading.channel:
            self._learn(channel=reading.channel)

    def _learn(
        self,
        *,
        channel: Channel | None = None,
        total_steps: int | None = None,
        steps_per_epoch: float | None = None,
        resumes: bool | None = None,
    ) -> None:
        old = self.learned
        self.learned = replace(
            old,
            channel=channel or old.channel,
            total_steps=total_steps or old.total_steps,
            steps_per_epoch=steps_per_epoch or old.steps_per_epoch,
            resumes=old.resumes if resumes is None else resumes,
        )

    def _add_metrics(self, reading: Reading) -> None:
        for name, value in reading.metrics.items():
            if 0 < len(name) <= METRIC_NAME_LENGTH and (name in self.metrics or len(self.metrics) < MAX_METRICS):
                self.metrics[name] = self._unreported[name] = value


ROUNDED = 0.005
"""Passes over the data are printed with two decimals."""


@dataclass(frozen=True, slots=True)
class _Passes:
    """Passes over the data that came with losses, and how many losses there were before."""

    first: float
    count_before_first: int
    newest: float
    count_before_newest: int

    def end(self, total_epochs: float, known: int | None) -> int | None:
        """How many losses there are by the end of `total_epochs`: `known`, while the rounding allows it."""
        passes, losses = self.newest - self.first, self.count_before_newest - self.count_before_first
        if passes <= 2 * ROUNDED or losses < 1:
            return known
        left = (total_epochs - self.newest) * losses / passes
        total = self.count_before_newest + 1 + round(left)
        error = 0.5 + left * 2 * ROUNDED / passes
        return known if known is not None and abs(known - total) <= error else total


def _known_in_epoch(epoch: int, each: int, learned: Learned) -> Learned:
    """What is known of epochs, in one (from 0) of `each` steps; those that are not known count as long as it."""
    newest, began, steps = learned.newest_epoch, learned.newest_epoch_began, learned.newest_epoch_steps
    before = learned.epoch_before_began
    if newest is None or began is None or steps is None:
        found, before = epoch * each, None
    elif epoch == newest:
        found = began
    elif epoch > newest:
        found, before = began + steps + (epoch - newest - 1) * each, began if epoch == newest + 1 else None
    elif epoch == newest - 1 and before is not None:
        found, before = before, None
    else:
        found, before = epoch * each, None
    return replace(
        learned, newest_epoch=epoch, newest_epoch_began=found, newest_epoch_steps=each, epoch_before_began=before
    )


def _is_counted(reading: Reading) -> bool:
    """Whether a reading without a step may be one."""
    return reading.loss is not None or (reading.epoch is not None and reading.epoch == int(reading.epoch))


def _is_finite(value: float | None) -> bool:
    return value is None or math.isfinite(value)
