"""The steps of an agent's processes: learned, counted, reported."""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from pathlib import Path
from queue import SimpleQueue
from typing import NoReturn

from optimus_contract.command import Launch, launch
from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.progress import Advance, Learned
from optimus_contract.readings.reading import Channel, Reading
from optimus_contract.readings.samples import sample_of
from optimus_workers.environment import TaskEnvironment
from optimus_workers.script.channels.listener import Channels
from optimus_workers.script.channels.searching import LimitedSearch
from optimus_workers.script.channels.unread import says_more, unread_line
from optimus_workers.script.checkpoints import FileKey
from optimus_workers.script.folders import named_folders
from optimus_workers.script.launch import python_environment
from optimus_workers.script.processes import Starter
from optimus_workers.script.run import Run, Stopping
from optimus_workers.script.samples import Gathered, counted_as, counted_rates, profile_of
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.newest import Newest
from optimus_workers.telemetry.planned_rates import planned
from optimus_workers.telemetry.sender import Telemetry
from optimus_workers.wire.control import ControlConnection, Delivered
from optimus_workers.wire.messages import Done, FromTask, Go, Recount, StartCommand

# --- What an agent knows, and what it says to its coordinator --------------------------------------------------------

PRINTS = {"PYTHONUNBUFFERED": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "160"}
"""What makes libraries print their progress at once, into a file too: `rich` draws its bars (Lightning's are such ones)
only where it is told of a terminal, and breaks those that are wider than it."""
UNREAD_SECONDS, UNREAD_LINES = 120.0, 200
"""So long after the start, or after so many lines that may tell a step and a loss, the user gets a note that no step
was recognised; at the latest when the processes have ended."""
MEMORY_NAME = "script.json"
"""In the job's directory: what was learned of the script, for the agents after this one."""


class State:
    """What the parts of an agent share."""

    def __init__(self, environment: TaskEnvironment, directory: Path) -> None:
        """`directory`: of this agent alone, for the channels and the request to stop."""
        spec = environment.spec
        self._environment, self._spec = environment, spec
        self._directory = directory
        self._queue: SimpleQueue[Delivered | Reading | tuple[Reading, ...]] = SimpleQueue()
        self._control: ControlConnection | None = None
        self._stop_dialling = threading.Event()
        self._terminated = False
        self._job_is_over = False
        self._leave_by: float | None = None
        self._host = "127.0.0.1"
        self._channels = Channels(self._queue.put, directory)
        self._stop_file = directory / "stop"
        self._limit_file = directory / "stop-at-step"
        self._max_steps = spec.convergence.max_steps
        self._working_directory = Path(spec.working_directory) if spec.working_directory else Path.cwd()
        self._variables = self._base_variables()
        self._launch = self._launch_for(spec.workers.max)
        self._starter = Starter(self._launch.argv, self._working_directory, self._variables, preload=spec.preload)
        self._client = ServiceClient(environment.service_url, environment.job_id, environment.job_token)
        self._telemetry = Telemetry(self._client.post_telemetry, aggregator=Gathered(), on_back=self._tell_again)
        self._search = LimitedSearch(spec.progress_patterns) if spec.progress_patterns else None
        """Used under `_reading`."""
        self._n_given_up = 0
        """Patterns that were told to be searched for no more."""
        self._run: Run | None = None
        self._epoch = 0
        """The newest membership epoch that a coordinator has named."""
        self._order: StartCommand | None = None
        """Waits for the place where the processes meet."""
        self._masters: dict[int, tuple[str, int]] = {}
        """Membership epoch → where its processes meet."""
        self._stopping: Stopping | None = None
        self._last_step: int | None = None
        self._saved: set[FileKey] = set()
        """Files that processes of this worker have saved."""
        named = dict.fromkeys(folder for _, folder in named_folders(spec.command or ()))
        self._folders = tuple(str(self._working_directory / each) for each in named)
        """In which the folders of checkpoints are."""
        self._held: list[Advance] = []
        """Steps before the membership is formed."""
        self._done_at = self._learned_at = self._files_at = float("-inf")
        self._profiles = Newest(self._client.put_profile, "what was learned")
        self._plans = Newest(self._client.put_planned_rates, "the planned learning rates")
        self._had_total = False
        """Whether it was known after how many steps the script ends when its profile was made last."""
        self._output = threading.Lock()
        """Guards what is passed on ..."""
        self._reading = threading.Lock()
        """... and what of it is read."""

    def _tell_again(self) -> None:
        """On the telemetry's thread: the service was away."""
        self._profiles.again()
        self._plans.again()

    def _launch_for(self, workers: int) -> Launch:
        """What this worker starts in a job of up to so many workers."""
        return launch(list(self._spec.command or ()), gpus=self._spec.workers.resources.gpus, workers=workers)

    def _exit(self, code: int) -> NoReturn:
        """End this process at once, without the agent's own directory: the job's token is in it."""
        shutil.rmtree(self._directory, ignore_errors=True)
        os._exit(code)

    def _send(self, message: FromTask) -> None:
        if self._control is not None:
            self._control.send(message)

    @property
    def _is_weak(self) -> bool:
        return self._spec.scaling == "weak"

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
            "OPTIMUS_STOP_AT_STEP_FILE": str(self._limit_file),
            "OPTIMUS_CHECKPOINT_DIRECTORY": str(checkpoints),
        }

    def _limit(self) -> str:
        """The step at which processes that ask end by themselves, where all sizes count the same steps; else empty."""
        spec = self._spec
        is_same = not self._is_weak and (spec.global_batch_size or spec.workers.max == 1)
        return str(self._max_steps) if is_same and self._max_steps is not None else ""

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

    def _remembered_paces(self) -> dict[int, float]:
        """Seconds of a step by the number of workers, as far as agents of this job have seen."""
        try:
            found = json.loads((self._environment.job_directory / MEMORY_NAME).read_text()).get("paces", {})
            paces = {int(workers): float(seconds) for workers, seconds in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}
        return {workers: seconds for workers, seconds in paces.items() if workers > 0 and 0 < seconds < math.inf}

    def _least_pace(self, n_workers: int) -> float:
        """The least seconds that a step may take with so many workers, as far as is known: more workers are faster in
        proportion at best, and fewer are not faster. 0: nothing is known."""
        known = self._remembered_paces()
        least = (seconds * min(1.0, workers / n_workers) for workers, seconds in known.items())
        return known.get(n_workers) or max(least, default=0.0)

    def _remember(self, learned: Learned, step: int) -> None:
        path, paces = self._environment.job_directory / MEMORY_NAME, self._remembered_paces()
        if self._run is not None and (pace := self._run.progress.seconds_per_step) is not None:
            paces[self._run.order.n_workers] = pace
        document = {**asdict(learned), "step": step, "paces": paces}
        scratch = path.with_name(f"{MEMORY_NAME}.{os.getpid()}")
        with suppress(OSError):
            scratch.write_text(json.dumps(document))
            scratch.replace(path)


log = logging.getLogger(__name__)

DONE_SECONDS = 0.25
"""Least time between two reports of steps to the coordinator."""
LEARNED_SECONDS = 2.0
"""Least time between two reports of what was learned. How long the training is, is reported at once: people see the
steps that tell it at the same time."""
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
            # One that is no number counts, too: else the last that was one would be told as the final loss.
            loss, weight = (0.0, 0) if advance.loss is None else (advance.loss, 1)
            self._send(Done(order.epoch, advance.step, loss, weight))

    def _report_planned_rates(self, run: Run) -> None:
        """Once it is known how the steps to come count."""
        if not run.is_formed:
            return
        plan = planned(counted_rates(run.progress.take_planned_rates(), run.batch if self._is_weak else None))
        if plan is not None:
            self._plans.tell(plan)

    def _report_learned(self, run: Run) -> None:
        learned, now = run.progress.learned, time.monotonic()
        has_total, had_total = learned.total_steps is not None, self._had_total
        if now < self._learned_at + LEARNED_SECONDS and run.end is None and has_total == had_total:
            return
        self._learned_at, self._had_total = now, has_total
        self._remember(learned, run.progress.step or self._remembered_step())
        if self._is_weak:
            if not run.is_formed or run.progress.has_old_total:
                return  # it is not known yet how the steps to come count
            if learned.total_steps is not None:
                learned = replace(learned, total_steps=run.batch.reported_step(learned.total_steps))
            if learned.began_at:  # it was counted by the first membership
                is_first = run.order.step == 0
                learned = replace(learned, began_at=run.batch.reported_step(learned.began_at) if is_first else None)
        self._profiles.tell(profile_of(learned, self._spec.global_batch_size))

    def _look_at_unread(self, run: Run, now: float) -> None:
        """Report what is printed while no step is recognised, and stop with the first one that is. `now`: of the
        monotonic clock, infinite once the processes have ended."""
        printed, is_known = run.printed, run.progress.step is not None
        line = None if is_known else unread_line(printed.unread, printed.plain, printed.n_lines)
        is_late = now >= run.begun_at + UNREAD_SECONDS or printed.n_unread >= UNREAD_LINES
        old = run.progress.learned.unread_line
        if line is None and old is not None:
            run.progress.learned = replace(run.progress.learned, unread_line=None)
        elif line is not None and says_more(line, old) and is_late and run.order.rank == 0:
            run.progress.learned = replace(run.progress.learned, unread_line=line)
            self._report_learned(run)

    def _read_files(self, run: Run) -> None:
        """Read what was logged to files, unless a better channel speaks."""
        channel = run.progress.learned.channel
        if channel is None or channel.trust <= Channel.TENSORBOARD.trust:
            self._learn([each for files in run.files for each in files.read()])

    def _send_end(self, run: Run) -> None:
        """Not before the steps that wait for the membership: they count, and the job may end with this message."""
        if run.end is not None and run.is_reported and not self._held:
            self._send(run.end)
