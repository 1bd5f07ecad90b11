"""What an agent looks at while its processes run: their output, their files, whether they stand still."""

from __future__ import annotations

import logging
import signal
import threading
import time

from optimus_contract.readings.reading import Channel
from optimus_contract.telemetry import Note
from optimus_workers.errors import HUNG, TERMINATED, ServiceProblem
from optimus_workers.script.channels.searching import given_up_words
from optimus_workers.script.ending import STOPPING_TICK_SECONDS, Ending
from optimus_workers.script.processes import signal_group
from optimus_workers.script.run import Run
from optimus_workers.script.samples import with_checkpoints
from optimus_workers.script.standstill import usage
from optimus_workers.wire.messages import CommandHung, CommandIdle, CommandStarted

log = logging.getLogger(__name__)

FIRST_STEP_SECONDS = 30.0
"""The first step after a change says where training goes on. A script that has not reported one for so long may never
report one: the membership counts as formed then. One that has told no step before trains from its start on."""
FIRST_REPORT_SECONDS = 120.0
"""The same for a script that reports its steps with `optimus_client`: it will report its first one, too, however long
it loads a large model."""
STACKS_SECONDS = 1.0
"""For processes that hang to print where they are."""
FILES_SECONDS = 2.0
"""How often event files are looked at."""
PRINTS_TOO_MUCH = (
    "It prints {:,} lines a second. All of them are in its log; 50 a second and the newest are read, so that steps and "
    "losses between them may be missed. Print less often, or report with optimus_client (docs/scripts.md)."
)


class Watching(Ending):
    """Looks at the processes, again and again."""

    def _look(self) -> None:
        """Notice ends and deadlines."""
        now, run = time.monotonic(), self._run
        if self._leave_by is not None and now >= self._leave_by:
            self._kill()
            self._exit(TERMINATED)
        if run is None:
            return
        if now >= self._files_at + FILES_SECONDS:
            self._files_at = now
            self._read_files(run)
            with self._reading:
                readings = run.printed.newest(time.time())
            self._learn(readings)
            self._look_at_silence(run)
            if run.order.rank == 0:
                self._report_learned(run)
        if self._stopping is not None:
            self._look_at_stopping(run, self._stopping, now)
            return
        if run.end is None:
            self._look_at_checkpoints(run, now)
            self._look_at_unread(run, now)
            self._look_at_flood(run)
            self._look_at_patterns()
            self._look_at_standstill(run, now)
            self._look_at_end(run)
        expected = run.order.rank == 0 and run.order.step > 0 and run.end is None
        reports = run.progress.learned.channel is Channel.CLIENT
        patience = FIRST_REPORT_SECONDS if reports else FIRST_STEP_SECONDS
        expected = expected and now < run.begun_at + patience and not run.progress.is_misplaced
        if expected and not run.is_reported:
            run.loads.look([process.pid for process in run.processes], now)
        if not run.is_reported and (not expected or run.first_step is not None):
            run.is_reported = True
            self._send(self._started(run, now))
            self._send_end(run)

    def _started(self, run: Run, now: float) -> CommandStarted:
        """What worker 0 says of how they came up, if they made a step."""
        if run.first_step is None:
            return CommandStarted(run.order.epoch)
        took, told_every = now - run.begun_at, run.progress.learned.told_every
        loads = min(run.loads.seconds if run.load_seconds is None else run.load_seconds, took)
        trained = 0.0
        if told_every is not None and run.progress.step is not None:
            n_steps = run.progress.step - run.first_step
            trained = min(n_steps * self._least_pace(run.order.n_workers), took - loads)
        starts = took - loads - trained
        return CommandStarted(run.order.epoch, run.first_step, loads, starts, trained, told_every)

    def _look_at_flood(self, run: Run) -> None:
        """Tell once of these processes that they print more than is read."""
        flood = run.printed.flood
        if flood is None or run.is_flood_reported or run.order.rank != 0:
            return
        run.is_flood_reported = True
        self._tell(Note(kind="PrintsTooMuch", message=PRINTS_TOO_MUCH.format(flood)))

    def _look_at_patterns(self) -> None:
        """Tell once of each pattern that it is not searched for any more."""
        given_up = [] if self._search is None else self._search.given_up[self._n_given_up :]
        self._n_given_up += len(given_up)
        for pattern in given_up:
            self._tell(Note(kind="PatternTooSlow", message=given_up_words(pattern)))

    def _tell(self, note: Note) -> None:
        """In the log, and as an event."""
        log.warning("%s", note.message)
        threading.Thread(target=self._post_note, args=(note,), name="note", daemon=True).start()

    def _post_note(self, note: Note) -> None:
        try:
            self._client.post_note(note)
        except ServiceProblem as error:
            log.warning("a note could not be reported: %s", error)

    def _look_at_checkpoints(self, run: Run, now: float) -> None:
        if run.order.rank == 0:
            run.checkpoints.look([process.pid for process in run.processes], now)
            run.progress.learned = with_checkpoints(run.progress.learned, run.checkpoints.found)

    def _look_at_standstill(self, run: Run, now: float) -> None:
        """Report to the coordinator, which knows of all workers, if these processes do nothing."""
        standstill, starter = run.standstill, self._starter.pid
        if starter is None or not standstill.is_due(now):
            return
        idle = standstill.look(usage(starter), now)
        if idle is not None:
            step, total = run.progress.step, run.progress.learned.total_steps
            complete = step is not None and total is not None and step >= total
            self._send(CommandIdle(run.order.epoch, idle, standstill.patience_seconds, complete))

    def _hung(self, message: CommandHung) -> None:
        """No worker gets any further: show where the processes are, and let another worker take this one's place."""
        run = self._run
        if run is None or run.order.epoch != message.epoch or self._stopping is not None:
            return
        log.error("the processes of the command hang, see hang_seconds; this worker ends")
        for process in run.processes:
            signal_group(process, signal.SIGUSR2)
        give_up_at = time.monotonic() + STACKS_SECONDS
        while not self._all_ended(run) and time.monotonic() < give_up_at:
            time.sleep(STOPPING_TICK_SECONDS)
        self._leave(HUNG)
