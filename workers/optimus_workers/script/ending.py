"""How the processes of a script end: by themselves, when they are asked to, or by force."""

from __future__ import annotations

import logging
import math
import signal
import sys
import time
from contextlib import suppress
from dataclasses import replace
from queue import Empty
from typing import NoReturn

from optimus_contract.readings.progress import Progress
from optimus_contract.readings.reading import Channel, Reading
from optimus_workers.script.checkpoints import Writes
from optimus_workers.script.learning import Learning
from optimus_workers.script.processes import Process, ended_by_itself, how_it_ended, signal_group, terminate_if
from optimus_workers.script.run import Run, Stopping
from optimus_workers.script.samples import finite
from optimus_workers.wire.control import Delivered
from optimus_workers.wire.messages import (
    CommandEnded,
    CommandQuiet,
    CommandStopped,
    Done,
    StopCommand,
)

log = logging.getLogger(__name__)

STOPPING_TICK_SECONDS = 0.02
"""How late the end of a process or a deadline may be noticed while training stands still."""
WRITES_SECONDS = 0.05
"""Least time between two looks at what is written then."""
SAVING_SECONDS = 10.0
"""How long a checkpoint that is being written is waited for before SIGTERM; at most half of the time to stop."""
KILL_SECONDS = 5.0
"""Between the last request to stop and the end by force, where no time to save is given."""
ERROR_CHARACTERS = 7800
"""Of what a failed command printed: with how it ended, the coordinator reports at most 8000."""
TELEMETRY_SECONDS = 5.0
LEARNED_BEFORE_END_SECONDS = 2.0
"""For which the end waits for what was learned to be told, where the service is slow or away."""


def _explained(process: Process, code: int) -> str:
    """What a process printed last, and how it ended."""
    return (
        f"the command ended with {how_it_ended(code)}; it printed last:\n{process.tail()[-ERROR_CHARACTERS:].strip()}"
    )


def trained_untold(progress: Progress, asked_after: float) -> float:
    """For how many seconds after the last step that was told the processes made others, of which they tell only some:
    until they were asked to stop, `asked_after` seconds, and no longer than until the next one that they would tell."""
    every, pace = progress.learned.told_every, progress.seconds_per_step
    return 0.0 if every is None or pace is None else min(max(asked_after, 0.0), (every - 1) * pace)


_OF_THEIR_TIME = 0.5
"""The steps after the last one that was told were made, where at least this part of the time passed that they take."""


def step_at_end(progress: Progress, since_step: float) -> int | None:
    """The step that processes which ended well have made, `since_step` seconds after the last one that they told; None:
    they told none. Of a script that tells each hundredth, that is the last one that it announced, if that is before the
    next one that it would tell, and there was time for it. Counted from 0, the last of 500 steps is 499."""
    step, every, pace = progress.step, progress.learned.told_every, progress.seconds_per_step
    total = progress.learned.total_steps
    if step is None or every is None or pace is None or total is None:
        return step
    last = total - 1 if progress.learned.counts_from_zero else total
    if not step < total or last >= step + every:
        return step
    return total if since_step >= _OF_THEIR_TIME * (total - step) * pace else step


class Ending(Learning):
    """Stops the processes, and notices their end."""

    def _stop(self, message: StopCommand) -> None:
        """Ask the processes to stop: through the stop file if they look at it, else by SIGTERM."""
        self._order = None
        now, run = time.monotonic(), self._run
        if run is not None:
            self._folders = run.checkpoints.folders(self._folders, self._working_directory)
        if run is not None and run.end is None and self._all_ended(run):
            self._look_at_end(run)
        if run is None or self._all_ended(run):
            self._stopped(message.epoch)
            return
        if self._stopping is not None and self._stopping.epoch == message.epoch:
            self._stop_otherwise(self._stopping, message)
            return
        for process in run.processes:
            process.hurry()
        with suppress(OSError):
            self._stop_file.touch(mode=0o600)
        if message.at_once:
            self._stopping = Stopping(message.epoch, now, now, now + KILL_SECONDS, Writes(now, self._folders))
        else:
            at, writes = now + min(self._spec.stop_seconds / 2, SAVING_SECONDS), Writes(now, self._folders)
            self._stopping = Stopping(message.epoch, now, at, now + self._spec.stop_seconds, writes, True)
            run.looks_at_stop_file = run.looks_at_stop_file or self._remembers_stop_file
            self._stop_otherwise(self._stopping, replace(message, is_asked=message.is_asked or run.looks_at_stop_file))
            self._tell_of_writes(run, self._stopping)

    def _stop_otherwise(self, stopping: Stopping, message: StopCommand) -> None:
        """It is known now how the processes of all workers stop."""
        stopping.all_quiet = message.all_quiet
        if message.is_asked and stopping.waits_for_writes:
            stopping.waits_for_writes = False
            stopping.terminate_at = stopping.since + self._spec.stop_seconds
            stopping.kill_at = stopping.terminate_at + KILL_SECONDS

    def _tell_of_writes(self, run: Run, stopping: Stopping) -> None:
        """Tell the coordinator what it has to know before it decides how the processes of all workers stop."""
        found = stopping.is_quiet, run.looks_at_stop_file
        if found != stopping.reported:
            stopping.reported = found
            self._send(CommandQuiet(stopping.epoch, *found))

    @property
    def _remembers_stop_file(self) -> bool:
        """Whether processes before these did, in which case these may not have said so yet."""
        return self._remembered().resumes is True and self._remembered().channel is Channel.CLIENT

    def _stopped(self, epoch: int) -> None:
        run, stopping, self._stopping = self._run, self._stopping, None
        finished = run is not None and run.end is not None and run.end.exit_code == 0 and run.end.counts
        step = since_step = saved = None
        untold_steps = 0
        killed_after = None if stopping is None else stopping.killed_after
        if run is not None:
            step = run.progress.stopped_at or run.progress.step
            self._last_step = step
            if run.order.rank == 0:
                self._remember(run.progress.learned, step or self._remembered_step())
            if run.progress.step is not None:
                since_step = max(0.0, time.time() - run.progress.last_at)
                seen = 0.0 if stopping is None else stopping.writes.seconds(time.monotonic() - since_step)
                saved = min(seen if run.save_seconds is None else run.save_seconds, since_step)
                asked_ago = since_step if stopping is None else time.monotonic() - stopping.since
                trained = trained_untold(run.progress, since_step - asked_ago)
                since_step -= trained
                if saved <= 0:  # else they may be saved
                    untold_steps = int(trained / (run.progress.seconds_per_step or math.inf))
                saved = min(saved, since_step)
            self._saved = set(run.checkpoints.files) | (set() if stopping is None else stopping.writes.files)
        self._run = None
        self._telemetry.flush(0.0)
        self._send(CommandStopped(epoch, step, finished, since_step, saved, killed_after, untold_steps))

    def _kill(self) -> None:
        """End all processes by force."""
        if self._run is not None:
            for process in self._run.processes:
                signal_group(process, signal.SIGKILL)
        self._run = self._stopping = None

    def _end(self) -> None:
        """Processes that still run are not wanted any more: they may clean up for a moment."""
        run, give_up_at = self._run, time.monotonic() + KILL_SECONDS
        for process in run.processes if run is not None else ():
            signal_group(process, signal.SIGTERM)
        while run is not None and not self._all_ended(run) and time.monotonic() < give_up_at:
            time.sleep(STOPPING_TICK_SECONDS)

    def _all_ended(self, run: Run) -> bool:
        return None not in [process.poll() for process in run.processes]

    def _drain(self) -> None:
        """Take in what the processes said last."""
        run = self._run
        if run is not None:
            for process in run.processes:
                process.finish_reading(1.0)
            is_whole = all(ended_by_itself(process.exit_code) for process in run.processes[:1])  # the one that is read
            with self._reading:
                readings = run.printed.finish(time.time(), is_whole=is_whole)
            if readings:
                self._queue.put(tuple(readings))  # behind those that were printed before
            self._read_files(run)
        left: list[Delivered] = []
        with suppress(Empty):
            while True:
                message = self._queue.get_nowait()
                if isinstance(message, Reading):
                    self._learn([message])
                elif isinstance(message, tuple):
                    self._learn(message)
                else:
                    left.append(message)
        for message in left:
            self._queue.put(message)

    def _look_at_stopping(self, run: Run, stopping: Stopping, now: float) -> None:
        if self._all_ended(run):
            self._drain()
            log.info("the command stopped within %.2f s", time.monotonic() - stopping.since)
            self._stopped(stopping.epoch)
            return
        if now >= stopping.looked_at + WRITES_SECONDS:
            stopping.looked_at = now
            groups = [process.pid for process in run.processes if process.exit_code is None]
            stopping.is_quiet = stopping.writes.are_quiet(groups, now)
            if not stopping.terminated:
                self._tell_of_writes(run, stopping)
        if now >= stopping.kill_at:
            if stopping.killed_after is None:
                stopping.killed_after = now - stopping.since
                log.warning("the command did not end within %.0f s, and is killed", stopping.killed_after)
            for process in run.processes:
                signal_group(process, signal.SIGKILL)
        elif not stopping.terminated and now >= stopping.terminate_at:
            stopping.terminated = True
            for process in run.processes:
                signal_group(process, signal.SIGTERM)
        elif not stopping.terminated and stopping.waits_for_writes and stopping.is_quiet and stopping.all_quiet:
            # Unless a checkpoint has begun since the last look: half a one may keep a script from going on.
            stopping.terminated = terminate_if(
                run.processes, lambda groups: stopping.writes.are_quiet(groups, time.monotonic())
            )
            stopping.is_quiet = stopping.terminated

    def _look_at_end(self, run: Run) -> None:
        codes = [process.poll() for process in run.processes]
        failed = [process for process in run.processes if process.exit_code]
        if not failed and None in codes:
            return
        if self._starter.has_lapsed:
            return  # they were ended because this process was stopped, perhaps since the last look at the lease
        for process in run.processes:
            signal_group(process, signal.SIGKILL)  # the others wait for the one that failed
        self._drain()
        self._settle(run)
        step = run.progress.step if failed else step_at_end(run.progress, time.time() - run.progress.last_at)
        if run.is_formed and step is not None:
            self._send(Done(run.order.epoch, step, 0.0, 0))  # steps are reported now and then only
        if not failed:
            counts = not run.progress.is_misplaced
            run.end = CommandEnded(run.order.epoch, 0, metrics=finite(run.progress.metrics), counts=counts)
        else:
            code = failed[0].exit_code or 1
            if code > 128 and code - 128 in (signal.SIGKILL, signal.SIGTERM):
                self._killed(code)
            run.end = CommandEnded(run.order.epoch, code, _explained(failed[0], code))
        if run.order.rank == 0:
            self._look_at_unread(run, math.inf)
            self._report_learned(run)
            self._profiles.wait(LEARNED_BEFORE_END_SECONDS)  # what is said of the end names it
        self._send_end(run)

    def _killed(self, code: int) -> None:
        """Somebody or the kernel killed a process: this worker counts as lost, as one does that is killed itself."""
        why = "; if nobody sent it, the machine had no memory left for it" if code - 128 == signal.SIGKILL else ""
        log.error("a process of the command was killed by %s%s", signal.Signals(code - 128).name, why)
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        """Exit at once, as a worker that fails."""
        self._kill()
        self._telemetry.close(TELEMETRY_SECONDS)
        sys.stdout.flush()
        self._exit(code)
