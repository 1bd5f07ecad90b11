"""What an agent or a tracker reports of a script to the service: its steps as samples, and what was learned of it."""

from __future__ import annotations

import math
from dataclasses import replace

from optimus_contract.readings.progress import Advance, Learned
from optimus_contract.readings.samples import MOST_STEPS
from optimus_contract.result import JobProfile
from optimus_contract.telemetry import Sample
from optimus_workers.script.channels.unread import suggested_pattern
from optimus_workers.script.checkpoints import Checkpoints
from optimus_workers.telemetry.sender import Aggregator
from optimus_workers.wire.values import GlobalBatch

NEWS = 0.2
"""A time of checkpoints that changed by less than this part is not reported again."""


def counted_as(advance: Advance, batch: GlobalBatch) -> Advance:
    """An advance in steps of the base batch, as the job counts them with weak scaling."""
    step = batch.reported_step(advance.step)
    return replace(advance, step=step, n_steps=step - batch.reported_step(advance.step - advance.n_steps))


def counted_rates(planned: list[tuple[int, float]], batch: GlobalBatch | None) -> list[tuple[int, float]]:
    """Planned learning rates in steps of the base batch (None: they are); a batch's own steps begin with its first."""
    if batch is None:
        return planned
    return [(batch.reported_step(step), rate) for step, rate in planned if step >= batch.first_step]


def profile_of(learned: Learned, global_batch_size: int | None) -> JobProfile:
    """What was learned of a script, as its profile."""
    return JobProfile(
        global_batch_size=global_batch_size,
        steps_per_epoch=learned.steps_per_epoch,
        total_steps=learned.total_steps,
        learned_from=None if learned.channel is None else learned.channel.value,
        resumes=learned.resumes,
        fixed_workers=learned.fixed_workers,
        checkpoint_every_seconds=learned.checkpoint_every_seconds,
        checkpoint_write_seconds=learned.checkpoint_write_seconds,
        unread_line=learned.unread_line,
        suggested_pattern=None if learned.unread_line is None else suggested_pattern(learned.unread_line),
        began_at_step=learned.began_at,
    )


def with_checkpoints(learned: Learned, found: Checkpoints | None) -> Learned:
    """What was learned, with how checkpoints are written, if that is new: these figures vary a little all the time."""
    if found is None or not (
        _differs(found.every_seconds, learned.checkpoint_every_seconds)
        or _differs(found.write_seconds, learned.checkpoint_write_seconds)
    ):
        return learned
    return replace(learned, checkpoint_every_seconds=found.every_seconds, checkpoint_write_seconds=found.write_seconds)


def _differs(value: float, known: float | None) -> bool:
    return known is None or abs(value - known) > NEWS * known


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """The figures of an evaluation that are numbers."""
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


class Gathered(Aggregator):
    """Samples of `SAMPLE_SECONDS` or more, as those of tasks."""

    def _merged(self, steps: list[Sample]) -> Sample | None:
        if not steps:
            return None
        last = steps[-1]
        rates = [each.learning_rate for each in steps if each.learning_rate is not None]
        return replace(
            last,
            n_steps=min(sum(each.n_steps for each in steps), MOST_STEPS),
            n_examples=sum(each.n_examples for each in steps),
            seconds=sum(each.seconds for each in steps),
            loss=_loss_of(steps),
            learning_rate=rates[-1] if rates else None,
        )


def _loss_of(steps: list[Sample]) -> float | None:
    """The mean over the steps with a finite one; the newest, if that is not finite: a training may have diverged."""
    weighed = [(each.loss, each.n_steps) for each in steps if each.loss is not None]
    if not weighed or not math.isfinite(weighed[-1][0]):
        return weighed[-1][0] if weighed else None
    finite = [(loss, n) for loss, n in weighed if math.isfinite(loss)]
    return sum(loss * n for loss, n in finite) / sum(n for _, n in finite)
