"""A worker of a script: runs the command as its coordinator says, learns its steps, reports them.

One thread, the main one, decides; control connection, channels and processes put what happens into one queue.
"""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NoReturn

from optimus_contract.command import launch
from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.progress import Advance, Learned, Progress
from optimus_contract.readings.reading import Channel, Reading
from optimus_contract.readings.samples import sample_of
from optimus_contract.result import JobProfile
from optimus_contract.telemetry import Note
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import COORDINATOR_GONE, HUNG, LET_GO, TERMINATED, ServiceProblem
from optimus_workers.script.announced import announced
from optimus_workers.script.channels.listener import Channels
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.tensorboard import TensorBoardFiles, log_folders
from optimus_workers.script.channels.unread import NOTHING_PRINTED, unread_line
from optimus_workers.script.checkpoints import CheckpointWatch
from optimus_workers.script.launch import (
    Place,
    batch_variables,
    distributed_variables,
    python_environment,
    weak_variables,
)
from optimus_workers.script.loading import Loads
from optimus_workers.script.processes import Process, Starter, signal_group
from optimus_workers.script.samples import (
    Gathered,
    counted_as,
    counted_rates,
    finite,
    profile_of,
    with_checkpoints,
)
from optimus_workers.script.saving import FileKey, Writes
from optimus_workers.script.standstill import Standstill, usage
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.planned_rates import planned, send_planned_rates
from optimus_workers.telemetry.sender import Telemetry
from optimus_workers.wire.control import ControlConnection, CoordinatorGone, CoordinatorLost, Delivered, dial
from optimus_workers.wire.messages import (
    CommandEnded,
    CommandHung,
    CommandIdle,
    CommandQuiet,
    CommandStarted,
    CommandStopped,
    Done,
    Exit,
    FromTask,
    Go,
    Hello,
    Leave,
    Publish,
    Published,
    Recount,
    StartCommand,
    StopCommand,
)
from optimus_workers.wire.values import GlobalBatch, TaskProfile, TaskRole, UpdateRule

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""How late the end of a process or a deadline may be noticed ..."""
STOPPING_TICK_SECONDS = 0.02
"""... and while training stands still."""
WRITES_SECONDS = 0.05
"""Least time between two looks at what is written then."""
FIRST_STEP_SECONDS = 30.0
"""A script that has not reported a step for so long after its start may never report one: the membership counts as
formed then."""
LINES_WITHOUT_STEP = 20
"""So does one that begins from step 0 and has printed so many lines without one that is recognised."""
SAVING_SECONDS = 10.0
"""How long a checkpoint that is being written is waited for before SIGTERM; at most half of the time to stop."""
KILL_SECONDS = 5.0
"""Between the last request to stop and the end by force, where no time to save is given."""
STACKS_SECONDS = 1.0
"""For processes that hang to print where they are."""
DONE_SECONDS = 0.25
"""Least time between two reports of steps to the coordinator."""
FILES_SECONDS = 2.0
"""How often event files are looked at."""
LEARNED_SECONDS = 2.0
"""Least time between two reports of what was learned."""
UNREAD_SECONDS, UNREAD_LINES = 120.0, 200
"""So long after the start, or after so many lines with figures, the user is told that no step was recognised."""
PRINTS_TOO_MUCH = (
    "It prints {:,} lines a second. All of them are in its log; 50 a second and the newest are read, so that steps and "
    "losses between them may be missed. Print less often, or report with optimus_client (docs/scripts.md)."
)
MASTER_KEY = "master"
"""The key under which worker 0 publishes where the processes meet."""
MISPLACED = (
    "the command counts its steps by its number of processes, and with %d workers went on from the wrong step: nothing "
    "of this counts, and the job is started again with %d workers"
)
PRINTS = {"PYTHONUNBUFFERED": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "160"}
"""What makes libraries print their progress at once, into a file too: `rich` draws its bars (Lightning's are such ones)
only where it is told of a terminal, and breaks those that are wider than it."""
ERROR_CHARACTERS = 7800
"""Of what a failed command printed: with how it ended, the coordinator reports at most 8000."""
TELEMETRY_SECONDS = 5.0
MEMORY_NAME = "script.json"
"""In the job's directory: what was learned of the script, for the agents after this one."""


def script_profile(batch: int | None) -> TaskProfile:
    """What stands for a script where the coordinator wants a profile: nothing is known of its parameters."""
    rule = UpdateRule("sgd", 0.0, nesterov=False, weight_decay=0.0, betas=(0.9, 0.999), eps=1e-8)
    return TaskProfile(0, 0, 0, 0, batch or 1, 1, rule)


def run_agent(environment: TaskEnvironment) -> int:
    """Work until the coordinator releases this worker; the exit code."""
    with tempfile.TemporaryDirectory(prefix="optimus-script-") as directory:
        return Agent(environment, Path(directory)).run()


@dataclass(slots=True)
class Run:
    """The processes of one membership."""

    order: StartCommand
    processes: list[Process]
    progress: Progress
    printed: Printed
    begun_at: float
    """`time.monotonic` when they were started."""
    standstill: Standstill
    batch: GlobalBatch
    """How the script's steps count as steps of the job."""
    is_formed: bool = False
    """The coordinator has formed the membership: samples count."""
    is_reported: bool = False
    """`CommandStarted` was sent."""
    end: CommandEnded | None = None
    """How they ended by themselves."""
    first_step: int | None = None
    files: tuple[TensorBoardFiles, ...] = ()
    """What may be written beside; only worker 0 reads it."""
    checkpoints: CheckpointWatch = field(default_factory=CheckpointWatch)
    loads: Loads = field(default_factory=lambda: Loads(()))
    load_seconds: float | None = None
    """For which they have loaded a checkpoint, and ..."""
    save_seconds: float | None = None
    """... saved one at their end, if they said so."""
    is_flood_told: bool = False
    """The owner knows that they print more than is read."""
    looks_at_stop_file: bool = False
    """They use `optimus_client`, by which they save and end when the stop file appears."""


@dataclass(slots=True)
class Stopping:
    """The processes are being stopped for `epoch`; times are of `time.monotonic`."""

    epoch: int
    since: float
    terminate_at: float
    kill_at: float
    writes: Writes
    waits_for_writes: bool = False
    """They are terminated as soon as no worker's processes write anything, `terminate_at` at the latest."""
    all_quiet: bool = False
    """No other worker's do, as the coordinator says."""
    told: tuple[bool, bool] = (False, False)
    """What the coordinator knows of them: see `CommandQuiet`."""
    terminated: bool = False
    killed_after: float | None = None
    """Seconds after which they were killed."""
    is_quiet: bool = False
    looked_at: float = float("-inf")


class Agent:
    """The life of one worker of a script."""

    def __init__(self, environment: TaskEnvironment, directory: Path) -> None:
        """`directory`: of this agent alone, for the channels and the request to stop."""
        spec = environment.spec
        self._environment, self._spec = environment, spec
        self._directory = directory
        self._queue: SimpleQueue[Delivered | Reading | tuple[Reading, ...]] = SimpleQueue()
        self._control: ControlConnection | None = None
        self._stop_dialling = threading.Event()
        self._terminated = False
        self._leave_by: float | None = None
        self._host = "127.0.0.1"
        self._channels = Channels(self._queue.put, directory)
        self._stop_file = directory / "stop"
        self._working_directory = Path(spec.working_directory) if spec.working_directory else Path.cwd()
        self._variables = self._base_variables()
        command = list(spec.command or ())
        self._launch = launch(command, gpus=spec.workers.resources.gpus, workers=spec.workers.max)
        self._starter = Starter(self._launch.argv, self._working_directory, self._variables, preload=spec.preload)
        self._client = ServiceClient(environment.service_url, environment.job_id, environment.job_token)
        self._telemetry = Telemetry(self._client.post_telemetry, aggregator=Gathered())
        self._run: Run | None = None
        self._order: StartCommand | None = None
        """Waits for the place where the processes meet."""
        self._masters: dict[int, tuple[str, int]] = {}
        """Membership epoch → where its processes meet."""
        self._stopping: Stopping | None = None
        self._last_step: int | None = None
        self._saved: set[FileKey] = set()
        """Files that processes of this worker have saved."""
        self._held: list[Advance] = []
        """Steps before the membership is formed."""
        self._done_at = self._learned_at = self._files_at = float("-inf")
        self._sent: JobProfile | None = None
        """What the service knows of the script."""
        self._output = threading.Lock()
        """Guards what is passed on ..."""
        self._reading = threading.Lock()
        """... and what of it is read."""

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
            self._telemetry.close(TELEMETRY_SECONDS)
            if self._control is not None:
                self._control.close()
        return TERMINATED if self._terminated else code

    # --- the coordinator ---------------------------------------------------------------------------------------------

    def _live(self) -> int:
        while True:
            self._control = self._dial()
            reason = self._serve()
            if isinstance(reason, Exit):
                log.info("let go: %s", reason.reason)
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
        version = self._last_step or self._remembered_step()
        return Hello(environment.task_name, TaskRole.WORKER, environment.rank, "", "", profile=profile, version=version)

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
                    self._begin(message)
                case StopCommand():
                    self._stop(message)
                case Published():
                    self._published(message)
                case Recount():
                    self._recount(message)
                case CommandHung():
                    self._hung(message)
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

    def _send(self, message: FromTask) -> None:
        if self._control is not None:
            self._control.send(message)

    def _terminate(self) -> None:
        """SIGTERM: ask the coordinator for release; exit in time either way. Runs between any two lines."""
        self._terminated = True
        self._stop_dialling.set()
        if self._control is None:
            self._kill()
            os._exit(TERMINATED)
        self._control.send(Leave())
        self._leave_by = time.monotonic() + self._spec.stop_seconds + 2 * KILL_SECONDS

    # --- starting ----------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        try:
            self._starter.prepare()
        except OSError as error:
            log.warning("the command cannot be prepared: %s", error)

    def _base_variables(self) -> dict[str, str]:
        """What all processes see: the task's own environment without its secrets, and the channels."""
        environment, spec = self._environment, self._spec
        found = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
        found = python_environment(found, spec.python or sys.executable)
        for name, value in PRINTS.items():
            found.setdefault(name, value)
        if environment.cpu_limit is not None:
            found.setdefault("OMP_NUM_THREADS", str(max(1, math.ceil(environment.cpu_limit))))
        checkpoints = environment.job_directory / "script-checkpoints"
        with suppress(OSError):
            checkpoints.mkdir(mode=0o700, parents=True, exist_ok=True)
        return {
            **found,
            **self._channels.variables(found),
            "OPTIMUS_JOB": environment.job_id,
            "OPTIMUS_STOP_FILE": str(self._stop_file),
            "OPTIMUS_CHECKPOINT_DIRECTORY": str(checkpoints),
        }

    def _begin(self, order: StartCommand) -> None:
        """Start the processes of a membership, once it is known where they meet."""
        self._kill()
        self._order = order
        if order.rank == 0:
            master = (self._host, _free_port(self._host))
            self._masters = {order.epoch: master}
            self._send(Publish(order.epoch, MASTER_KEY, f"{master[0]} {master[1]}".encode().hex()))
        self._start_if_known()

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
        printed = Printed(self._spec.progress_patterns, first_epoch=learned.first_epoch, steps_per_epoch=each)
        now = time.monotonic()
        run = Run(order, [], progress, printed, now, Standstill(now, self._spec.hang_seconds), order.batch)
        if order.rank == 0:
            run.loads = Loads(self._saved)
            folders = log_folders(self._spec.command or (), self._variables)
            run.files = tuple(TensorBoardFiles(self._working_directory / each, time.time()) for each in folders)
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
        if self._is_weak:
            found |= weak_variables(place.n_workers, self._spec.warmup_epochs)
        if self._launch.is_distributed:
            found |= distributed_variables(self._launch, place, local_rank, self._environment.job_id)
            if place.master[0].startswith("127."):
                found |= {name: "lo" for name in ("GLOO_SOCKET_IFNAME",) if name not in self._variables}
        return found

    @property
    def _is_weak(self) -> bool:
        return self._spec.scaling == "weak"

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

    # --- stopping ----------------------------------------------------------------------------------------------------

    def _stop(self, message: StopCommand) -> None:
        """Ask the processes to stop: through the stop file if they look at it, else by SIGTERM."""
        self._order = None
        now, run = time.monotonic(), self._run
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
            self._stopping = Stopping(message.epoch, now, now, now + KILL_SECONDS, Writes(now))
        else:
            at = now + min(self._spec.stop_seconds / 2, SAVING_SECONDS)
            self._stopping = Stopping(message.epoch, now, at, now + self._spec.stop_seconds, Writes(now), True)
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
        if found != stopping.told:
            stopping.told = found
            self._send(CommandQuiet(stopping.epoch, *found))

    @property
    def _remembers_stop_file(self) -> bool:
        """Whether processes before these did, in which case these may not have said so yet."""
        return self._remembered().resumes is True and self._remembered().channel is Channel.CLIENT

    def _stopped(self, epoch: int) -> None:
        run, stopping, self._stopping = self._run, self._stopping, None
        finished = run is not None and run.end is not None and run.end.exit_code == 0 and run.end.counts
        step = since_step = saved = None
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
            self._saved = set(run.checkpoints.files) | (set() if stopping is None else stopping.writes.files)
        self._run = None
        self._telemetry.flush(0.0)
        self._send(CommandStopped(epoch, step, finished, since_step, saved, killed_after))

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

    # --- what happens to the processes -------------------------------------------------------------------------------

    def _look(self) -> None:
        """Notice ends and deadlines."""
        now, run = time.monotonic(), self._run
        if self._leave_by is not None and now >= self._leave_by:
            self._kill()
            os._exit(TERMINATED)
        if run is None:
            return
        if now >= self._files_at + FILES_SECONDS:
            self._files_at = now
            self._read_files(run)
            with self._reading:
                readings = run.printed.newest(time.time())
            self._learn(readings)
            self._telemetry.put_open()
            if run.order.rank == 0:
                self._report_learned(run)
        if self._stopping is not None:
            self._look_at_stopping(run, self._stopping, now)
            return
        if run.end is None:
            self._look_at_checkpoints(run, now)
            self._look_at_unread(run, now)
            self._look_at_flood(run)
            self._look_at_standstill(run, now)
            self._look_at_end(run)
        reports = run.order.rank == 0
        expected = reports and run.end is None and now < run.begun_at + FIRST_STEP_SECONDS
        expected = expected and not run.progress.is_misplaced and not self._is_unread(run)
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
        took = now - run.begun_at
        loads = min(run.loads.seconds if run.load_seconds is None else run.load_seconds, took)
        return CommandStarted(run.order.epoch, run.first_step, loads, took - loads)

    def _is_unread(self, run: Run) -> bool:
        """Whether it prints what is not understood. After a change the first step says where training goes on, so it
        is waited for all the same."""
        return not run.order.step and run.progress.step is None and run.printed.n_lines >= LINES_WITHOUT_STEP

    def _send_end(self, run: Run) -> None:
        """Not before the steps that wait for the membership: they count, and the job may end with this message."""
        if run.end is not None and run.is_reported and not self._held:
            self._send(run.end)

    def _look_at_unread(self, run: Run, now: float) -> None:
        """Tell what is printed while nothing is recognised; once a step is, it is told no more."""
        line = None if run.progress.step is not None else unread_line(run.printed.unread, run.printed.n_lines)
        is_late = now >= run.begun_at + UNREAD_SECONDS or run.printed.n_unread >= UNREAD_LINES
        told = run.progress.learned.unread_line
        if line is None and told is not None:
            run.progress.learned = replace(run.progress.learned, unread_line=None)
        elif line is not None and told in (None, NOTHING_PRINTED) and told != line and is_late and run.order.rank == 0:
            run.progress.learned = replace(run.progress.learned, unread_line=line)
            self._report_learned(run)

    def _look_at_flood(self, run: Run) -> None:
        """Tell once of these processes that they print more than is read."""
        flood = run.printed.flood
        if flood is None or run.is_flood_told or run.order.rank != 0:
            return
        run.is_flood_told = True
        note = Note(kind="PrintsTooMuch", message=PRINTS_TOO_MUCH.format(flood))
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
        """Tell the coordinator, who knows of all workers, if these processes do nothing."""
        standstill, starter = run.standstill, self._starter.pid
        if starter is None or not standstill.is_due(now):
            return
        idle = standstill.look(usage(starter), now)
        if idle is not None:
            step, total = run.progress.step, run.progress.learned.total_steps
            complete = step is not None and total is not None and step >= total
            self._send(CommandIdle(run.order.epoch, idle, standstill.patience_seconds, complete))

    def _read_files(self, run: Run) -> None:
        """Read what was logged to files, unless a better channel speaks."""
        channel = run.progress.learned.channel
        if channel is None or channel.trust <= Channel.TENSORBOARD.trust:
            self._learn([each for files in run.files for each in files.read()])

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
        elif not stopping.terminated and (
            # Half a checkpoint may keep a script from going on.
            now >= stopping.terminate_at or (stopping.waits_for_writes and stopping.is_quiet and stopping.all_quiet)
        ):
            stopping.terminated = True
            for process in run.processes:
                signal_group(process, signal.SIGTERM)

    def _look_at_end(self, run: Run) -> None:
        codes = [process.poll() for process in run.processes]
        failed = [process for process in run.processes if process.exit_code]
        if not failed and None in codes:
            return
        for process in run.processes:
            signal_group(process, signal.SIGKILL)  # the others wait for the one that failed
        self._drain()
        self._settle(run)
        if run.is_formed and run.progress.step is not None:
            self._send(Done(run.order.epoch, run.progress.step, 0.0, 0))  # steps are reported now and then only
        if not failed:
            counts = not run.progress.is_misplaced
            run.end = CommandEnded(run.order.epoch, 0, metrics=finite(run.progress.metrics), counts=counts)
        else:
            code = failed[0].exit_code or 1
            if code > 128 and code - 128 in (signal.SIGKILL, signal.SIGTERM):
                self._killed(code)
            run.end = CommandEnded(run.order.epoch, code, _explained(failed[0], code))
        if run.order.rank == 0:
            self._report_learned(run)
        self._send_end(run)

    def _killed(self, code: int) -> None:
        """Somebody killed a process (out of memory?): this worker counts as lost, as one does that is killed itself."""
        log.error("a process of the command was killed by signal %d", code - 128)
        self._leave(code)

    def _leave(self, code: int) -> NoReturn:
        """Exit at once, as a worker that fails."""
        self._kill()
        self._telemetry.close(TELEMETRY_SECONDS)
        sys.stdout.flush()
        os._exit(code)

    def _hung(self, message: CommandHung) -> None:
        """Nobody gets any further: show where the processes are, and let another worker take this one's place."""
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

    def _drain(self) -> None:
        """Take in what the processes said last."""
        run = self._run
        if run is not None:
            for process in run.processes:
                process.finish_reading(1.0)
            with self._reading:
                readings = run.printed.finish(time.time())
            self._learn(readings)
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

    # --- steps -------------------------------------------------------------------------------------------------------

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
        advance = run.progress.add(reading)
        if run.order.rank != 0:
            return
        if run.progress.is_misplaced and not was_misplaced:
            log.warning(MISPLACED, run.order.n_workers, run.progress.learned.fixed_workers)
        if advance is not None:
            self._advance(run, advance)

    def _settle(self, run: Run) -> None:
        """The processes have ended: steps that were only to be guessed count now."""
        advance = run.progress.settle()
        if advance is not None and run.order.rank == 0:
            self._advance(run, advance)

    def _advance(self, run: Run, advance: Advance) -> None:
        run.standstill.stepped(time.monotonic())
        if run.first_step is None:
            run.first_step = advance.step - advance.n_steps
            log.info("the first step came %.2f s after the start", time.monotonic() - run.begun_at)
        if advance.n_steps == 0:
            pass
        elif run.is_formed:
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

    # --- memory ------------------------------------------------------------------------------------------------------

    def _remembered(self) -> Learned:
        """What agents of this job have learned of the script so far."""
        try:
            found = json.loads((self._environment.job_directory / MEMORY_NAME).read_text())
            known = {each.name: found[each.name] for each in fields(Learned) if found.get(each.name) is not None}
            channel = known.pop("channel", None)
            known.pop("unread_line", None)  # these processes may print other lines
            if not all(isinstance(value, int | float) and 0 <= value <= MAX_COUNT for value in known.values()):
                return Learned()  # the job's directory is the script's, too
            return Learned(None if channel is None else Channel(channel), **known)
        except (OSError, ValueError, AttributeError, TypeError):
            return Learned()

    def _remembered_step(self) -> int:
        """How far the agents of this job have seen it come, in the job's present attempt or before."""
        try:
            step = json.loads((self._environment.job_directory / MEMORY_NAME).read_text()).get("step")
        except (OSError, ValueError, AttributeError):
            return 0
        return step if isinstance(step, int) and step > 0 else 0

    def _remember(self, learned: Learned, step: int) -> None:
        path = self._environment.job_directory / MEMORY_NAME
        document = {**asdict(learned), "step": step}
        scratch = path.with_name(f"{MEMORY_NAME}.{os.getpid()}")
        with suppress(OSError):
            scratch.write_text(json.dumps(document))
            scratch.replace(path)


def _free_port(host: str) -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _explained(process: Process, code: int) -> str:
    """What a process printed last, and how it ended."""
    how = f"signal {code - 128}" if code > 128 else f"exit code {code}"
    return f"the command ended with {how}; it printed last:\n{process.tail()[-ERROR_CHARACTERS:].strip()}"
