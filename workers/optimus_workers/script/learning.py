"""The steps of an agent's processes: learned, counted, reported."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

from optimus_contract.readings.progress import Advance
from optimus_contract.readings.reading import Channel, Reading
from optimus_contract.readings.samples import sample_of
from optimus_contract.result import JobProfile
from optimus_workers.errors import ServiceProblem
from optimus_workers.script.run import Run
from optimus_workers.script.samples import counted_as, counted_rates, profile_of
from optimus_workers.script.state import State
from optimus_workers.telemetry.planned_rates import planned, send_planned_rates
from optimus_workers.wire.messages import Done, Go, Recount

log = logging.getLogger(__name__)

DONE_SECONDS = 0.25
"""Least time between two reports of steps to the coordinator."""
LEARNED_SECONDS = 2.0
"""Least time between two reports of what was learned."""
MISPLACED = (
    "the command counts its steps by its number of processes, and with %d workers went on from the wrong step: nothing "
    "of this counts, and the job is started again with %d workers"
)


class Learning(State):
    """Takes in what the channels read, and reports it."""

    def _recount(self, message: Recount) -> None:
        """The coordinator knows now from which step the script goes on."""
        if self._run is not None and self._run.order.epoch == message.epoch:
            self._run.batch = message.batch

    def _formed(self, message: Go) -> None:
        """The membership is formed: what the processes have done since their start may be reported."""
        run = self._run
        if run is None or run.order.epoch != message.epoch:
            return
        run.is_formed = True
        held, self._held = self._held, []
        for advance in held:
            self._report(run, advance)
        if held and run.end is not None:
            self._send(Done(run.order.epoch, held[-1].step, 0.0, 0))
            self._send_end(run)
        self._report_planned_rates(run)

    def _learn(self, readings: Sequence[Reading]) -> None:
        run = self._run
        if run is None or not readings:
            return
        for reading in readings:
            self._learn_one(run, reading)
        if run.order.rank == 0:
            self._report_planned_rates(run)
            self._report_learned(run)

    def _learn_one(self, run: Run, reading: Reading) -> None:
        run.standstill.heard(time.monotonic())
        run.looks_at_stop_file = run.looks_at_stop_file or reading.resumes
        if reading.rank in (None, 0):
            run.load_seconds = run.load_seconds if reading.load_seconds is None else reading.load_seconds
            run.save_seconds = run.save_seconds if reading.save_seconds is None else reading.save_seconds
        was_misplaced = run.progress.is_misplaced
        advances = run.progress.add(reading)
        if run.order.rank != 0:
            return
        if run.progress.is_misplaced and not was_misplaced:
            log.warning(MISPLACED, run.order.n_workers, run.progress.learned.fixed_workers)
        self._advance(run, advances)
        if advances:
            run.standstill.stepped(time.monotonic())

    def _look_at_silence(self, run: Run) -> None:
        """Losses count as steps if the processes have reported nothing else for a while."""
        if run.order.rank == 0:
            self._advance(run, run.progress.settle_if_silent(time.time()))

    def _settle(self, run: Run) -> None:
        """The processes have ended: steps that were only to be guessed count now."""
        advances = run.progress.settle()
        if run.order.rank == 0:
            self._advance(run, advances)

    def _advance(self, run: Run, advances: Sequence[Advance]) -> None:
        for advance in advances:
            if run.first_step is None:
                run.first_step = advance.step - advance.n_steps
                seconds = time.monotonic() - run.begun_at
                log.info("steps are known %.2f s after the start: step %d is made", seconds, advance.step)
            if advance.n_steps == 0:
                continue
            if run.is_formed:
                self._report(run, advance)
            else:
                self._held.append(advance)

    def _report(self, run: Run, advance: Advance) -> None:
        """Report steps to the service, and to the coordinator now and then."""
        order = run.order
        counted = counted_as(advance, run.batch) if self._is_weak else advance
        sample = sample_of(counted, run.progress.learned, membership_epoch=order.epoch, workers=order.n_workers)
        self._telemetry.record(sample)
        now = time.monotonic()
        if now >= self._done_at + DONE_SECONDS or advance.is_first:
            self._done_at = now
            has_loss = advance.loss is not None and math.isfinite(advance.loss)
            loss, weight = (advance.loss or 0.0, 1) if has_loss else (0.0, 0)
            self._send(Done(order.epoch, advance.step, loss, weight))

    def _report_planned_rates(self, run: Run) -> None:
        """Once it is known how the steps to come count."""
        if not run.is_formed:
            return
        plan = planned(counted_rates(run.progress.take_planned_rates(), run.batch if self._is_weak else None))
        if plan is not None:
            send_planned_rates(plan, self._client.put_planned_rates)

    def _report_learned(self, run: Run) -> None:
        learned, now = run.progress.learned, time.monotonic()
        if now < self._learned_at + LEARNED_SECONDS and run.end is None:
            return
        self._learned_at = now
        self._remember(learned, run.progress.step or self._remembered_step())
        if self._is_weak:
            if not run.is_formed or run.progress.has_old_total:
                return  # it is not known yet how the steps to come count
            if learned.total_steps is not None:
                learned = replace(learned, total_steps=run.batch.reported_step(learned.total_steps))
        profile = profile_of(learned, self._spec.global_batch_size)
        if profile == self._sent:
            return
        self._sent = profile
        threading.Thread(target=self._put_profile, args=(profile,), name="profile", daemon=True).start()

    def _put_profile(self, profile: JobProfile) -> None:
        try:
            self._client.put_profile(profile)
        except ServiceProblem as error:
            log.warning("what was learned could not be reported: %s", error)
            self._sent = None  # again, with the next step

    def _read_files(self, run: Run) -> None:
        """Read what was logged to files, unless a better channel speaks."""
        channel = run.progress.learned.channel
        if channel is None or channel.trust <= Channel.TENSORBOARD.trust:
            self._learn([each for files in run.files for each in files.read()])

    def _send_end(self, run: Run) -> None:
        """Not before the steps that wait for the membership: they count, and the job may end with this message."""
        if run.end is not None and run.is_reported and not self._held:
            self._send(run.end)
