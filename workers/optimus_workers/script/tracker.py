"""Learns a script that runs outside the cluster, by its owner's own means, and reports it to the service.

The script is not disturbed: it runs whether or not the service answers, its output goes where it would have gone, and
its exit code is what the tracker returns.
"""

from __future__ import annotations

import fcntl
import logging
import os
import pty
import signal
import subprocess
import tempfile
import termios
import threading
import time
import tty
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from optimus_contract.membership import MembershipReport
from optimus_contract.readings.progress import Advance, Learned, Progress
from optimus_contract.readings.reading import NOTHING, Announced, Channel, Reading
from optimus_contract.readings.samples import first_of_run, sample_of
from optimus_contract.result import JobResult, PlannedRates
from optimus_contract.telemetry import Note, Sample
from optimus_workers.errors import ServiceAway, ServiceProblem, ServiceRefused
from optimus_workers.script.announced import announced
from optimus_workers.script.channels.listener import Channels
from optimus_workers.script.channels.printed import Printed
from optimus_workers.script.channels.searching import LimitedSearch, given_up_words
from optimus_workers.script.channels.tensorboard import TensorBoardFiles, Writers, log_folders
from optimus_workers.script.checkpoints import CheckpointWatch
from optimus_workers.script.processes import ended_by_itself, how_it_ended
from optimus_workers.script.samples import Gathered, finite, profile_of, with_checkpoints
from optimus_workers.service_client import ServiceClient
from optimus_workers.telemetry.planned_rates import planned, send
from optimus_workers.telemetry.sender import Telemetry

log = logging.getLogger(__name__)

EPOCH = 1
"""A tracked run has one membership, from its start to its end."""
TICK_SECONDS = 0.5
FILES_SECONDS = 2.0
"""How often event files are looked at."""
ALIVE_SECONDS = 30.0
"""How often the service hears that the run goes on; it gives up a run that it has not heard of for an hour."""
RETRY_SECONDS = 5.0
"""Between two attempts to reach the service."""
LEARNED_SECONDS = 2.0
"""Least time between two reports of what was learned."""
CLOSE_SECONDS = 5.0
"""How long the end of the run may wait for the last reports."""
TAIL_BYTES = 8000
"""Of the output, in the error of a run that failed."""


@dataclass(frozen=True, slots=True)
class Tracked:
    """The job under which the service shows the run."""

    service_url: str
    job_id: str
    token: str


Register = Callable[[], Tracked]
"""Makes the job. Raises `ServiceAway` (it is asked again) or `ServiceRefused`."""


class Tracker:
    """Turns what the channels read into reports to the service. Never raises for the service's sake."""

    def __init__(
        self,
        register: Register,
        *,
        n_workers: int,
        on_news: Callable[[str], None],
        meant: Announced = NOTHING,
    ) -> None:
        """`n_workers`: processes that train together. `on_news`: called once for each thing that the user should know
        (the job's id; that nothing is tracked, and why).
        `meant`: how long the training is meant to last, as far as the command says."""
        self._register, self._on_news = register, on_news
        self._n_workers, self._meant = n_workers, meant
        self._progress = Progress(time.time(), 0, announced=meant)
        self._begun_at = time.time()
        self._queue: SimpleQueue[Reading] = SimpleQueue()
        self._notes: SimpleQueue[Note] = SimpleQueue()
        self._client: ServiceClient | None = None
        self._tracked: Tracked | None = None
        self._telemetry = Telemetry(self._post, aggregator=Gathered())
        self._sent = profile_of(Learned(), None)
        self._refused = False
        self._plan: PlannedRates | None = None
        self._alive_at = self._files_at = self._learned_at = self._register_at = float("-inf")
        self._is_away = self._is_known = False
        self._is_begun = False
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tracker", daemon=True)
        self._process: int | None = None
        self._files: tuple[TensorBoardFiles, ...] = ()
        self._checkpoints = CheckpointWatch()

    def start(self, process: int | None = None, files: Sequence[TensorBoardFiles] = ()) -> None:
        """Begin to report: the run has started. `process`: the command's, to see how it writes its checkpoints;
        `files`: where it may log."""
        self._process, self._files = process, tuple(files)
        self._begun_at = time.time()
        self._progress = Progress(self._begun_at, 0, announced=self._meant)
        self._thread.start()

    @property
    def job_id(self) -> str | None:
        """None until the service has answered."""
        return None if self._tracked is None else self._tracked.job_id

    def put(self, reading: Reading) -> None:
        """Take in what a channel read; from any thread, without waiting."""
        self._queue.put(reading)

    def tell(self, note: Note) -> None:
        """What the user should know of the run, here and in the service; from any thread, without waiting."""
        self._on_news(note.message)
        self._notes.put(note)

    def close(self, exit_code: int, error: str | None = None) -> None:
        """Report the end of the run; waits for the service for some seconds at most."""
        self._closing.set()
        self._thread.join(CLOSE_SECONDS)
        if self._client is None or self._refused:
            self._telemetry.close(0.0)
            if not self._refused:
                self._on_news("the run was not tracked: the service never answered")
            return
        self._telemetry.close(CLOSE_SECONDS)
        progress = self._progress
        result = JobResult(
            outcome="succeeded" if exit_code == 0 else "failed",
            step=progress.step or 0,
            metrics=dict(finite(progress.metrics)),
            error=error,
            permanent=True,
        )
        self._try(lambda client: client.put_profile(profile_of(progress.learned, None)))
        if not self._try(lambda client: client.post_result(result)):
            self._on_news("the end of the run could not be reported: the service will show it as lost within an hour")
        self._client.close()

    # --- the thread --------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            is_last = self._closing.is_set()
            try:
                self._turn()
            except Exception:
                log.exception("the run goes on; this was not reported")
            if is_last:
                return

    def _turn(self) -> None:
        reading: Reading | None = None
        with suppress(Empty):
            reading = self._queue.get(timeout=0 if self._closing.is_set() else TICK_SECONDS)
        while reading is not None:
            self._learn(reading)
            reading = None
            with suppress(Empty):
                reading = self._queue.get_nowait()
        now = time.monotonic()
        if now >= self._files_at + FILES_SECONDS or self._closing.is_set():
            self._files_at = now
            self._read_files()
            self._record(self._progress.settle_if_silent(time.time()))
        if self._closing.is_set():
            self._record(self._progress.settle())
        if self._process is not None and not self._closing.is_set():
            self._checkpoints.look([self._process], now)
            self._progress.learned = with_checkpoints(self._progress.learned, self._checkpoints.found)
        if self._refused:
            return
        if self._tracked is None:
            self._begin(now)
        if self._tracked is not None:
            self._report_learned(now)
            self._report_planned_rates()
            self._report_alive(now)
            self._report_notes()

    def _read_files(self) -> None:
        channel = self._progress.learned.channel
        if channel is None or channel.trust <= Channel.TENSORBOARD.trust:
            for files in self._files:
                for reading in files.read():
                    self._learn(reading)

    def _learn(self, reading: Reading) -> None:
        advances = self._progress.add(reading)
        self._plan = planned(self._progress.take_planned_rates()) or self._plan
        self._record(advances)

    def _record(self, advances: Sequence[Advance]) -> None:
        learned = self._progress.learned
        for advance in advances:
            if advance.n_steps == 0:
                continue
            counted = advance if self._is_begun else first_of_run(advance)
            self._is_begun = True
            self._telemetry.record(sample_of(counted, learned, membership_epoch=EPOCH, workers=self._n_workers))

    def _begin(self, now: float) -> None:
        if now < self._register_at + RETRY_SECONDS and not self._closing.is_set():
            return
        self._register_at = now
        try:
            tracked = self._register()
        except ServiceAway as error:
            if not self._is_away:
                self._on_news(f"the service does not answer yet ({error}); the command runs meanwhile")
            self._is_away = True
            return
        except ServiceRefused as error:
            self._refused = True
            self._on_news(f"the run is not tracked: {error}")
            return
        self._client = ServiceClient(tracked.service_url, tracked.job_id, tracked.token)
        self._tracked = tracked
        self._on_news(f"tracked as job {tracked.job_id}")

    def _report_alive(self, now: float) -> None:
        if now < self._alive_at + ALIVE_SECONDS or self._tracked is None:
            return
        job_id = self._tracked.job_id
        report = MembershipReport(
            epoch=EPOCH,
            generation=0,
            at=self._begun_at,
            step=0,
            workers=[f"{job_id}-worker-{rank}-0" for rank in range(self._n_workers)],
            servers=[],
            cause="start",
        )
        if self._try(lambda client: client.report_membership(report)):
            self._alive_at, self._is_known = now, True
        else:
            self._alive_at = now - ALIVE_SECONDS + RETRY_SECONDS

    def _report_planned_rates(self) -> None:
        """A service that does not know them tracks the run all the same."""
        plan, client = self._plan, self._client
        if plan is None or client is None:
            return
        with suppress(ServiceAway):  # again, with the next turn
            send(plan, client.put_planned_rates)
            self._plan = None

    def _report_notes(self) -> None:
        """Once the run is known; one that is not taken was told here."""
        with suppress(Empty, ServiceProblem):
            while self._is_known and self._client is not None:
                self._client.post_note(self._notes.get_nowait())

    def _report_learned(self, now: float) -> None:
        profile = profile_of(self._progress.learned, None)
        is_length = (profile.total_steps is None) != (self._sent.total_steps is None)
        if profile == self._sent or (now < self._learned_at + LEARNED_SECONDS and not is_length):
            return
        self._learned_at = now
        if self._try(lambda client: client.put_profile(profile)):
            self._sent = profile

    def _try(self, call: Callable[[ServiceClient], None]) -> bool:
        """Whether the service took it. One that has ended the job is not asked again."""
        if self._client is None or self._refused:
            return False
        try:
            call(self._client)
        except ServiceRefused as error:
            self._refused = True
            self._on_news(f"the run is not tracked any more: {error}; the command goes on")
            return False
        except ServiceProblem as error:
            log.debug("the service does not answer: %s", error)
            return False
        return True

    def _post(self, samples: list[Sample]) -> list[Sample]:
        client = self._client
        if client is None or not self._is_known:
            raise ServiceAway("the job is not known yet")  # they wait
        return client.post_telemetry(samples)


# --- a command -------------------------------------------------------------------------------------------------------


def run_tracked(
    command: Sequence[str],
    register: Register,
    *,
    n_workers: int = 1,
    progress_patterns: Sequence[str] = (),
    on_news: Callable[[str], None],
) -> int:
    """Run a command and track it until it ends.

    Its exit code; 128 and the signal's number when a signal ended it.

    Raises:
        OSError: the command cannot be started.
    """
    directory, environment = Path.cwd(), dict(os.environ)
    tracker = Tracker(register, n_workers=n_workers, on_news=on_news, meant=announced(command, directory))
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="optimus-track-")))
        channels = Channels(tracker.put, scratch)
        stack.callback(channels.close)
        folders = log_folders(command, environment)
        environment |= channels.variables(environment)
        environment.setdefault("PYTHONUNBUFFERED", "1")
        output = Output(progress_patterns, tracker.put, tracker.tell)
        since = time.time()
        process = _start(command, environment, output)
        writers = Writers(lambda: [process.pid], channels.are_told_to)
        tracker.start(process.pid, [TensorBoardFiles(directory / each, since, writers) for each in folders])
        code = _wait(process)
        output.close(is_whole=ended_by_itself(code))
        tracker.close(code, None if code == 0 else _explained(code, output.tail()))
    return code


class Output:
    """What a command prints: it goes where it would have gone, and is read on the way."""

    def __init__(
        self, patterns: Sequence[str], on_reading: Callable[[Reading], None], on_note: Callable[[Note], None]
    ) -> None:
        self._on_reading, self._on_note = on_reading, on_note
        self._search = LimitedSearch(patterns) if patterns else None
        self._n_given_up = 0
        self._printed = Printed(self._search)
        self._turn = threading.Lock()
        self._tail = b""
        self._threads: list[threading.Thread] = []

    def tap(self, target: int) -> int:
        """A file descriptor for the command to write to instead of `target`; a terminal if that is one."""
        if os.isatty(target):
            source, sink = pty.openpty()
            _copy_terminal(target, sink)
        else:
            source, sink = os.pipe()
        thread = threading.Thread(target=self._copy, args=(source, target), name=f"output-{target}", daemon=True)
        self._threads.append(thread)
        thread.start()
        return sink

    def tail(self) -> str:
        """What was printed last."""
        return self._tail.decode(errors="replace")

    def close(self, *, is_whole: bool = True) -> None:
        """Wait for what is still on its way; not for processes that the command has left behind.

        `is_whole`: whether the command printed all that it was to print, see `Printed.finish`.
        """
        for thread in self._threads:
            thread.join(1.0)
        with self._turn:
            self._put(self._printed.finish(time.time(), is_whole=is_whole))
            if self._search is not None:
                self._search.close()

    def _put(self, readings: Sequence[Reading]) -> None:
        for reading in readings:
            self._on_reading(reading)
        given_up = [] if self._search is None else self._search.given_up[self._n_given_up :]
        self._n_given_up += len(given_up)
        for pattern in given_up:
            self._on_note(Note(kind="PatternTooSlow", message=given_up_words(pattern)))

    def _copy(self, source: int, target: int) -> None:
        while True:
            try:
                data = os.read(source, 65536)
            except OSError:  # how the end of a terminal reads
                data = b""
            if not data:
                os.close(source)
                return
            with suppress(OSError):
                _write_all(target, data)
            with self._turn:
                self._tail = (self._tail + data)[-TAIL_BYTES:]
                self._put(self._printed.feed(data, time.time()))


def _write_all(target: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]


def _copy_terminal(target: int, sink: int) -> None:
    """The size of the user's terminal; line ends are left to it."""
    with suppress(OSError, termios.error):
        fcntl.ioctl(sink, termios.TIOCSWINSZ, fcntl.ioctl(target, termios.TIOCGWINSZ, bytes(8)))
        tty.setraw(sink)


def _start(command: Sequence[str], environment: Mapping[str, str], output: Output) -> subprocess.Popen[bytes]:
    """In the terminal's foreground: what the user types, Ctrl-C too, is for the command."""
    sinks = [output.tap(descriptor) for descriptor in (1, 2)]
    try:
        return subprocess.Popen(list(command), env=dict(environment), stdout=sinks[0], stderr=sinks[1])
    finally:
        for sink in sinks:
            os.close(sink)


def _wait(process: subprocess.Popen[bytes]) -> int:
    """The exit code. Ctrl-C reaches the command by itself; what is sent to the tracker alone is passed on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def pass_on(number: int, _frame: object) -> None:
        with suppress(ProcessLookupError):
            process.send_signal(number)

    try:
        signal.signal(signal.SIGINT, lambda *_: None)
        signal.signal(signal.SIGTERM, pass_on)
        signal.signal(signal.SIGHUP, pass_on)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _explained(code: int, tail: str) -> str:
    return f"the command ended with {how_it_ended(code)}; it printed last:\n{tail.strip()}"


def visible_gpus() -> int:
    """NVIDIA GPUs that a command started here sees."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return sum(1 for each in named.split(",") if each.strip() not in ("", "-1"))
    folder = Path("/proc/driver/nvidia/gpus")
    return len(list(folder.iterdir())) if folder.is_dir() else 0
