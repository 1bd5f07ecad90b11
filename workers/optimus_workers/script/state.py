"""What an agent knows, and what it says to its coordinator."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
from contextlib import suppress
from dataclasses import asdict, fields
from pathlib import Path
from queue import SimpleQueue

from optimus_contract.command import launch
from optimus_contract.limits import MAX_COUNT
from optimus_contract.readings.progress import Advance, Learned
from optimus_contract.readings.reading import Channel, Reading
from optimus_contract.result import JobProfile
from optimus_workers.environment import TaskEnvironment
from optimus_workers.script.channels.listener import Channels
from optimus_workers.script.checkpoints import FileKey
from optimus_workers.script.launch import python_environment
from optimus_workers.script.processes import Starter
from optimus_workers.script.run import Run, Stopping
from optimus_workers.script.samples import Gathered
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.sender import Telemetry
from optimus_workers.wire.control import ControlConnection, Delivered
from optimus_workers.wire.messages import FromTask, StartCommand

PRINTS = {"PYTHONUNBUFFERED": "1", "TTY_COMPATIBLE": "1", "COLUMNS": "160"}
"""What makes libraries print their progress at once, into a file too: `rich` draws its bars (Lightning's are such ones)
only where it is told of a terminal, and breaks those that are wider than it."""
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
        # Where all sizes count the same steps, a script that asks ends at the very step of the limit.
        limit = spec.convergence.max_steps
        if limit is not None and not self._is_weak and (spec.global_batch_size or spec.workers.max == 1):
            found["OPTIMUS_STOP_AT_STEP"] = str(limit)
        return {
            **found,
            **self._channels.variables(found),
            "OPTIMUS_JOB": environment.job_id,
            "OPTIMUS_STOP_FILE": str(self._stop_file),
            "OPTIMUS_CHECKPOINT_DIRECTORY": str(checkpoints),
        }

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
