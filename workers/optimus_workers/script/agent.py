"""A worker of a script: runs the command as its coordinator says, learns its steps, reports them.

One thread, the main one, decides; control connection, channels and processes put what happens into one queue. Each part
is a file, and knows those before it:

    state ─▶ learning (steps) ─▶ ending (stops and ends) ─▶ watching (what is looked at) ─▶ agent (orders, starts)
"""

from __future__ import annotations

import logging
import signal
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from queue import Empty

from optimus_contract.readings.progress import Progress
from optimus_contract.readings.reading import Reading
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import COORDINATOR_GONE, LET_GO, TERMINATED
from optimus_workers.script.announced import announced
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.tensorboard import TensorBoardFiles, Writers, log_folders
from optimus_workers.script.checkpoints import Loads
from optimus_workers.script.ending import KILL_SECONDS, STOPPING_TICK_SECONDS, TELEMETRY_SECONDS
from optimus_workers.script.launch import (
    Place,
    batch_variables,
    distributed_variables,
    weak_variables,
)
from optimus_workers.script.run import Run
from optimus_workers.script.standstill import Standstill
from optimus_workers.script.watching import Watching
from optimus_workers.wire.control import ControlConnection, CoordinatorGone, CoordinatorLost, Delivered, dial
from optimus_workers.wire.messages import (
    CommandEnded,
    CommandHung,
    CommandStarted,
    Exit,
    Go,
    Hello,
    Leave,
    Limit,
    Publish,
    Published,
    Recount,
    StartCommand,
    StopCommand,
)
from optimus_workers.wire.ports import reserve_port
from optimus_workers.wire.values import TaskProfile, TaskRole, UpdateRule

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""How late the end of a process or a deadline may be noticed while training goes on."""
MASTER_KEY = "master"
"""The key under which worker 0 publishes where the processes meet."""


def script_profile(batch: int | None) -> TaskProfile:
    """What stands for a script where the coordinator wants a profile: nothing is known of its parameters."""
    rule = UpdateRule("sgd", 0.0, nesterov=False, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8)
    return TaskProfile(0, 0, 0, 0, batch or 1, 1, rule)


def run_agent(environment: TaskEnvironment) -> int:
    """Work until the coordinator releases this worker; the exit code."""
    with tempfile.TemporaryDirectory(prefix="optimus-script-") as directory:
        return Agent(environment, Path(directory)).run()


class Agent(Watching):
    """The life of one worker of a script."""

    def run(self) -> int:
        """Dial the coordinator and obey it."""
        signal.signal(signal.SIGTERM, lambda *_: self._terminate())
        try:
            self._prepare()
            code = self._live()
        except CoordinatorGone as error:
            log.error("%s", error)  # noqa: TRY400 - its text says all
            code = COORDINATOR_GONE
        finally:
            self._kill()
            self._channels.close()
            if self._search is not None:
                self._search.close()
            self._telemetry.flush(TELEMETRY_SECONDS)
            if self._control is not None:
                self._control.close()
            self._telemetry.outlast(lambda: self._terminated or not self._job_is_over)
            self._telemetry.close(TELEMETRY_SECONDS)
        return TERMINATED if self._terminated else code

    def _live(self) -> int:
        while True:
            self._control = self._dial()
            reason = self._serve()
            if isinstance(reason, Exit):
                log.info("let go: %s", reason.reason)
                self._job_is_over = reason.job_is_over
                self._end()
                return LET_GO
            # The processes go on: the next coordinator forms a membership with them.
            log.warning("the coordinator is lost: %s", reason.reason)
            self._control.close()

    def _dial(self) -> ControlConnection:
        environment = self._environment
        control = dial(
            environment.coordinator_address,
            environment.job_token,
            self._hello,
            self._queue.put,
            self._stop_dialling,
        )
        if self._terminated:
            control.send(Leave())
        return control

    def _hello(self, host: str) -> Hello:
        self._host = host
        environment = self._environment
        profile = script_profile(self._spec.global_batch_size)
        run = self._run
        step = None if run is None else run.progress.step
        return Hello(
            environment.task_name,
            TaskRole.WORKER,
            environment.rank,
            "",
            "",
            profile=profile,
            version=step or self._last_step or self._remembered_step(),
            running_epoch=None if run is None or self._stopping is not None else run.order.epoch,
            running_workers=None if run is None or self._stopping is not None else run.order.n_workers,
            epoch=self._epoch,
        )

    def _serve(self) -> Exit | CoordinatorLost:
        """Do what the coordinator says until it says no more."""
        while True:
            message: Delivered | Reading | tuple[Reading, ...] | None = None
            with suppress(Empty):
                message = self._queue.get(timeout=STOPPING_TICK_SECONDS if self._is_still() else TICK_SECONDS)
            match message:
                case Exit() | CoordinatorLost():
                    return message
                case StartCommand():
                    self._epoch = max(self._epoch, message.epoch)
                    self._begin(message)
                case StopCommand():
                    self._epoch = max(self._epoch, message.epoch)
                    self._stop(message)
                case Published():
                    self._published(message)
                case Recount():
                    self._recount(message)
                case CommandHung():
                    self._hung(message)
                case Limit():
                    self._limited(message)
                case Go():
                    self._formed(message)
                case Reading():
                    self._learn([message])
                case tuple():
                    self._learn(message)
                case None:
                    pass
                case _:
                    log.warning("not for an agent: %s", type(message).__name__)
            if self._starter.has_lapsed:
                return self._awake()
            self._look()

    def _awake(self) -> Exit | CoordinatorLost:
        """This process was stopped for so long that another worker may have its rank: its own processes are ended, what
        the coordinator has said meanwhile is void, and it says anew what to do."""
        log.warning("this worker was stopped, and its processes were ended meanwhile")
        if self._run is not None:
            self._last_step = self._run.progress.step or self._last_step
        self._kill()
        self._order = None
        self._starter.renew()
        if self._control is not None:
            self._control.close()  # which is delivered, once
        while True:
            match self._queue.get():
                case Exit() | CoordinatorLost() as last:
                    return last

    def _is_still(self) -> bool:
        """Whether training stands still: its processes stop, or come up after a change."""
        run = self._run
        return self._stopping is not None or (
            run is not None and run.order.rank == 0 and not run.is_reported and bool(self._saved)
        )

    def _terminate(self) -> None:
        """SIGTERM: ask the coordinator for release; exit in time either way. Runs between any two lines."""
        self._terminated = True
        self._stop_dialling.set()
        if self._control is None:
            self._kill()
            self._exit(TERMINATED)
        self._control.send(Leave())
        self._leave_by = time.monotonic() + self._spec.stop_seconds + 2 * KILL_SECONDS

    def _prepare(self) -> None:
        try:
            self._starter.prepare()
        except OSError as error:
            log.warning("the command cannot be prepared: %s", error)

    def _begin(self, order: StartCommand) -> None:
        """Start the processes of a membership, once it is known where they meet."""
        if order.keeps_processes and self._run is not None:
            self._keep(self._run, order)
            return
        self._kill()
        self._order = order
        if order.rank == 0:
            master = (self._host, reserve_port(self._host))
            self._masters = {order.epoch: master}
            self._send(Publish(order.epoch, MASTER_KEY, f"{master[0]} {master[1]}".encode().hex()))
        self._start_if_known()

    def _keep(self, run: Run, order: StartCommand) -> None:
        """The processes go on in another membership: their steps count there from now on."""
        log.info("the processes go on in membership %d", order.epoch)
        run.order, run.batch, run.is_formed, run.is_reported = order, order.batch, False, True
        self._send(CommandStarted(order.epoch, run.progress.step))
        if run.end is not None:
            run.end = replace(run.end, epoch=order.epoch)
            self._send_end(run)

    def _limited(self, message: Limit) -> None:
        """The processes that run learn of it as well."""
        self._max_steps = message.max_steps
        scratch = self._limit_file.with_suffix(".new")
        with suppress(OSError):
            scratch.write_text(self._limit())
            scratch.replace(self._limit_file)

    def _published(self, message: Published) -> None:
        if message.key != MASTER_KEY:
            return
        with suppress(ValueError):
            host, _, port = bytes.fromhex(message.value).decode().rpartition(" ")
            self._masters = {message.epoch: (host, int(port))}
        self._start_if_known()

    def _start_if_known(self) -> None:
        order = self._order
        if order is None or order.epoch not in self._masters:
            return
        self._order = None
        # The owner may have allowed more workers since this one was started.
        self._launch = self._launch_for(max(self._spec.workers.max, order.n_workers))
        place = Place(order.rank, order.n_workers, self._masters[order.epoch], restarts=order.epoch - 1)
        with suppress(OSError):
            self._stop_file.unlink()
        version = max(order.step, self._remembered_step())
        weight = order.n_workers if self._is_weak else None
        batch, n_workers = self._batch_size(order.n_workers), order.n_workers
        meant = announced(self._launch.argv, self._working_directory)
        progress = Progress(time.time(), version, self._remembered(), batch, weight, n_workers, meant)
        learned = progress.learned
        each = None if self._is_weak else learned.steps_per_epoch
        printed = Printed(self._search, first_epoch=learned.first_epoch, steps_per_epoch=each)
        now = time.monotonic()
        run = Run(order, [], progress, printed, now, Standstill(now, self._spec.hang_seconds), order.batch)
        if order.rank == 0:
            run.loads = Loads(self._saved)
            folders = log_folders(self._spec.command or (), self._variables)
            writers = Writers(lambda: [process.pid for process in run.processes], self._channels.are_told_to)
            run.files = tuple(
                TensorBoardFiles(self._working_directory / each, time.time(), writers) for each in folders
            )
        self._run, self._held = run, []
        try:
            for local_rank in range(self._launch.n_processes):
                variables = self._process_variables(place, local_rank)
                run.processes.append(self._starter.start(local_rank, variables, self._printed))
        except (OSError, ValueError) as error:
            log.exception("the command could not be started")
            run.end = CommandEnded(order.epoch, 126, f"the command could not be started: {error}")

    def _process_variables(self, place: Place, local_rank: int) -> dict[str, str]:
        world = place.n_workers * self._launch.n_processes
        rank = place.rank * self._launch.n_processes + local_rank
        size = self._batch_size(place.n_workers)
        found = batch_variables(size, world, rank, at_once=self._spec.max_worker_batch_size)
        if limit := self._limit():
            found["OPTIMUS_STOP_AT_STEP"] = limit
        if self._is_weak:
            found |= weak_variables(place.n_workers, self._spec.warmup_epochs)
        if self._launch.is_distributed:
            found |= distributed_variables(self._launch, place, local_rank, self._environment.job_id)
            if place.master[0].startswith("127."):
                found |= {name: "lo" for name in ("GLOO_SOCKET_IFNAME",) if name not in self._variables}
        return found

    def _batch_size(self, n_workers: int) -> int | None:
        """Examples of one step of so many workers; None: the job names no batch."""
        size = self._spec.global_batch_size
        return size if size is None or not self._is_weak else size * n_workers

    def _printed(self, local_rank: int, data: bytes) -> None:
        """On the reading thread of a process: pass on what it prints, and learn from that of the first."""
        with self._output, suppress(OSError):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        run = self._run
        if run is not None:
            run.standstill.heard(time.monotonic())
        if local_rank == 0 and run is not None and run.order.rank == 0:
            with self._reading:
                readings = run.printed.feed(data, time.time())
            if readings:
                self._queue.put(tuple(readings))
