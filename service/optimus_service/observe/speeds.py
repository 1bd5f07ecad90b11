"""How fast a job made its steps at each size, and how much of its time went into steps, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from itertools import repeat
from statistics import median, median_low
from types import MappingProxyType
from typing import Any, Final

from optimus_models.history import LossBuckets
from optimus_models.speed.course import MOST_PARTS
from optimus_scheduler.model import Mode, SpeedSample
from optimus_service.store.records import Document

WINDOW_SECONDS = 5.0
"""Training time that one speed sample covers: long enough to average over hiccups, short enough to see changes."""
_LEAST_SECONDS = 1.0
"""A window that is still open counts from here on."""
MAX_WINDOWS_PER_SIZE = 8
"""Older windows of the same size are forgotten: machines and neighbours change."""
FIRST_RECORD = 0
"""The first record of a rank in an epoch is no measure of speed: it contains connecting and warming up."""

Columns = Mapping[str, Sequence[Any]]
"""Samples, the values of each field together, by the names of `Sample`'s fields."""
NO_TYPES: Final[Mapping[int, str | None]] = MappingProxyType({})
_SPEED_FIELDS: Final = (
    *("membership_epoch", "rank", "sequence", "workers", "servers", "global_batch"),
    *("n_steps", "updates", "seconds", "wait_seconds", "at", "step"),
)
_PAUSE_FIELDS: Final = ("rank", "membership_epoch", "at")
_SPLIT_FIELDS: Final = ("rank", "membership_epoch", "n_steps", "seconds")
_JOIN_FIELDS: Final = ("rank", "membership_epoch", "n_steps", "updates", "seconds", "at", "metrics")
_BUSY: Final = "busy_seconds"
_BEGINS: Final = "begins_window"
"""Columns that `Pauses.split` adds."""


def rows(columns: Columns, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These fields of one sample after the other."""
    return zip(*(columns[name] for name in names), strict=True)


@dataclass(slots=True)
class _Window:
    """Steps and training seconds of one rank. Of an elastic batch: updates, whatever they are worth."""

    n_steps: int = 0
    seconds: float = 0.0
    exchange_seconds: float = 0.0
    """Those in which a rank waited for the gradients of the others."""

    @property
    def steps_per_second(self) -> float:
        return self.n_steps / self.seconds


@dataclass(slots=True)
class _Windows:
    """The windows of all ranks of one membership epoch, which are being filled."""

    workers: int
    servers: int
    gpu_type: str | None = None
    batch: int | None = None
    """If it is elastic."""
    measures_exchange: bool = True
    """With servers, waiting is no measure of what travels: pushing and pulling take time of their own. A script does
    not measure its parts."""
    at: float = 0.0
    by_rank: dict[int, _Window] = field(default_factory=dict)

    def add(self, rank: int, n_steps: int, seconds: float, exchange_seconds: float, at: float) -> float:
        """The seconds of this rank so far."""
        window = self.by_rank.get(rank)
        if window is None:
            window = self.by_rank[rank] = _Window()
        window.n_steps += n_steps
        window.seconds += seconds
        window.exchange_seconds += exchange_seconds
        self.at = max(self.at, at)
        return window.seconds

    def speed(self, mode: Mode, least_seconds: float) -> SpeedSample | None:
        """None until the ranks that count have `least_seconds` each.

        In sync mode all ranks make the same steps together, so rank 0 tells the job's speed. In async mode each makes
        steps of its own, and they add up.
        """
        ranks = [0] if mode is Mode.SYNC else range(self.workers)
        windows = [self.by_rank.get(rank) for rank in ranks]
        filled = [window for window in windows if window is not None and window.seconds >= least_seconds]
        if len(filled) < len(windows):
            return None
        speed = sum(window.steps_per_second for window in filled)
        n_steps = sum(window.n_steps for window in filled)
        exchange = sum(window.exchange_seconds for window in filled) / n_steps if self.measures_exchange else None
        return SpeedSample(
            self.workers, self.servers, speed, n_steps, self.at, self.gpu_type, self.batch, exchange_seconds=exchange
        )


class SpeedHistory:
    """Measured speeds by size and GPU type. How much an old one counts is for the scheduler: each says when it was."""

    def __init__(self, mode: Mode, *, measures_parts: bool = True) -> None:
        """`measures_parts`: samples say how long each part of a step took; those of a script do not."""
        self._mode = mode
        self.measures_parts = measures_parts
        """As it was given."""
        self._epoch = 0
        """The newest membership epoch seen. What older ones still send is late and left out."""
        self._open: _Windows | None = None
        self._closed: dict[_Place, tuple[SpeedSample, ...]] = {}
        self._course = LossBuckets(MOST_PARTS)
        """Seconds of a step of rank 0 by step ..."""
        self._course_place: _Place | None = None
        """... with this size ..."""
        self._has_course = True
        """... which was the only one."""

    def add(self, columns: Columns, gpu_types: Mapping[int, str | None] = NO_TYPES) -> None:
        """`gpu_types`: of the memberships that the samples are from."""
        begins = columns.get(_BEGINS, repeat(False))
        course: list[tuple[int, float, int]] = []
        for row, begins_window in zip(rows(columns, _SPEED_FIELDS), begins, strict=False):
            epoch, rank, sequence, workers, servers, batch, n_steps, updates, seconds, wait_seconds, at, step = row
            if epoch > self._epoch or begins_window:
                self._close(_LEAST_SECONDS)
                self._epoch = max(epoch, self._epoch)
            if epoch < self._epoch or sequence == FIRST_RECORD or seconds <= 0:
                continue
            if self._open is None:
                measures_exchange = self.measures_parts and not servers
                self._open = _Windows(workers, servers, gpu_types.get(epoch), batch, measures_exchange)
            if rank == 0 and n_steps > 0:
                self._note_place((workers, servers, gpu_types.get(epoch) or "", batch or 0))
                course.append((max(step - n_steps // 2, 0), seconds / n_steps, n_steps))
            done = self._open.add(rank, n_steps if updates is None else updates, seconds, wait_seconds, at)
            is_full = done >= WINDOW_SECONDS and (rank == 0 or self._mode is not Mode.SYNC)
            if is_full and self._open.speed(self._mode, WINDOW_SECONDS) is not None:
                self._close(WINDOW_SECONDS)
        if course and self._has_course:
            self._course.add_many(*zip(*course, strict=True))

    def _note_place(self, place: _Place) -> None:
        if self._course_place is None:
            self._course_place = place
        elif place != self._course_place and self._has_course:
            self._has_course, self._course = False, LossBuckets(MOST_PARTS)

    def course(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Steps, increasing, and the mean seconds of a step of rank 0 about each; empty of a job that changed its size,
        as nothing tells then what its steps would have taken without that."""
        return self._course.points()

    def roll_back(self, step: int) -> None:
        """Steps beyond `step` were lost: they are made again."""
        self._course.roll_back(step)

    def samples(self) -> tuple[SpeedSample, ...]:
        """By size, oldest first; the window that is being filled is among them."""
        present = self._open.speed(self._mode, _LEAST_SECONDS) if self._open is not None else None
        last = [present] if present is not None else []
        return (*(speed for size in sorted(self._closed) for speed in self._closed[size]), *last)

    def state(self) -> Document:
        """All that is known, for `restore`."""
        windows = None if self._open is None else asdict(self._open) | {"by_rank": _pairs_of(self._open.by_rank)}
        closed = [list(astuple(speed)) for size in sorted(self._closed) for speed in self._closed[size]]
        course = [self._has_course, self._course_place, self._course.state()]
        return {"epoch": self._epoch, "open": windows, "closed": closed, "course": course}

    def restore(self, state: Document) -> None:
        """Know what the history knew that had this state."""
        self._epoch = state["epoch"]
        if state["open"] is not None:
            by_rank = {rank: _Window(*values) for rank, values in state["open"]["by_rank"]}
            self._open = _Windows(**state["open"] | {"by_rank": by_rank})
        for values in state["closed"]:
            self._keep(SpeedSample(*values))
        # An older release kept none, so that the beginning of it is not known.
        self._has_course, place, buckets = state.get("course") or (False, None, LossBuckets(MOST_PARTS).state())
        self._course_place = None if place is None else (place[0], place[1], place[2], place[3])
        self._course = LossBuckets.of_state(buckets[0], buckets[1], buckets[2], MOST_PARTS)

    def _close(self, least_seconds: float) -> None:
        speed = self._open.speed(self._mode, least_seconds) if self._open is not None else None
        self._open = None
        if speed is not None:
            self._keep(speed)

    def _keep(self, speed: SpeedSample) -> None:
        place = _place_of(speed)
        known = self._closed.get(place, ())
        self._closed[place] = (*known, speed)[-MAX_WINDOWS_PER_SIZE:]


_Place = tuple[int, int, str, int]


def _place_of(speed: SpeedSample) -> _Place:
    return speed.workers, speed.servers, speed.gpu_type or "", speed.batch or 0


def _pairs_of(by_rank: Mapping[int, _Window]) -> list[list[Any]]:
    return [[rank, list(astuple(window))] for rank, window in by_rank.items()]


_PACES, _LEAST_PACES = 15, 5
"""Newest samples by which the usual time of a step of a script is known, and how many there have to be."""
_PAUSED = 4.0
"""A sample of a script that took so many times as long as its steps usually do, and a second more, has a pause in
it; so has the time between two steps of a task that is so many times as long as usual ..."""
SLOWER_IN_A_ROW = 3
"""... but so many samples of a script after each other have none: its steps take longer now. (Some scripts evaluate
after one step and write a checkpoint after the next.)"""


@dataclass(slots=True)
class Pauses:
    """How much of the time of worker 0 goes into steps: between them it evaluates and writes checkpoints."""

    epoch: int = 0
    last_at: float | None = None
    seconds: float = 0.0
    """From its first report in each membership on ..."""
    busy_seconds: float = 0.0
    """... and in steps."""
    paced_epoch: int = 0
    paces: tuple[float, ...] = ()
    """Seconds per step in the newest samples of that membership, of a script; of a task, those between two steps, which
    the steps' own do not have."""
    in_a_row: int = 0
    """So many of these, the newest, were taken for samples with a pause in them ..."""
    row_steps: int = 0
    """... with so many steps ..."""
    row_seconds: float = 0.0
    """... in so many seconds ..."""
    row_pauses: float = 0.0
    """... which of these were taken for pauses."""

    def split(self, columns: Columns) -> Columns:
        """Samples of a script as measures of its speed. What it tells of a step after an evaluation has that in it, as
        nothing tells when it began: it is none (0 seconds), and its steps are taken to have lasted as usual
        (`busy_seconds`). Where several after each other are so long, it is slower from the first of them on: the last
        one then stands for all, and begins a window."""
        seconds, steps, busy = (list(columns[name]) for name in ("seconds", "n_steps", "seconds"))
        begins = [False] * len(seconds)
        for place, (rank, epoch, n_steps, took) in enumerate(rows(columns, _SPLIT_FIELDS)):
            if rank != 0 or took <= 0 or n_steps <= 0:
                continue
            if epoch != self.paced_epoch:
                self.paced_epoch, self.paces = epoch, ()
                self._end_row()
            usual = median(self.paces) * n_steps if len(self.paces) >= _LEAST_PACES else took
            self.paces = (*self.paces, took / n_steps)[-_PACES:]
            longest = max(_PAUSED * usual, usual + _LEAST_SECONDS)
            if took <= (math.sqrt(usual * longest) if self.in_a_row else longest):
                self._end_row()  # in a row one is long that is more like those before it than as usual
            elif self.in_a_row + 1 < SLOWER_IN_A_ROW:
                seconds[place], busy[place] = 0.0, usual
                self.in_a_row += 1
                self.row_steps += n_steps
                self.row_seconds += took
                self.row_pauses += took - usual
            else:
                seconds[place], steps[place], begins[place] = self.row_seconds + took, self.row_steps + n_steps, True
                self.busy_seconds += self.row_pauses
                self.paces = self.paces[-SLOWER_IN_A_ROW:]  # those before say nothing of its steps any more
                self._end_row()
        return {**columns, "seconds": seconds, "n_steps": steps, _BUSY: busy, _BEGINS: begins}

    def join(self, columns: Columns) -> Columns:
        """Samples of tasks as measures of speed: their seconds are those in which steps followed each other.

        A step's own begin when its worker is told to make it and end when it has told that it did. Until it is told of
        the next one, the coordinator waits for the others, and the worker reports: of steps of milliseconds on busy
        processors that is a third of the time. What takes more than usual there is no part of them: an evaluation, a
        checkpoint. What is usual cannot be told from the first such time alone.
        """
        seconds, epoch, last_at = list(columns["seconds"]), self.epoch, self.last_at
        for place, (rank, sample_epoch, n_steps, updates, took, at, metrics) in enumerate(rows(columns, _JOIN_FIELDS)):
            made = n_steps if updates is None else updates
            if sample_epoch < epoch or took <= 0 or made <= 0:
                continue
            if sample_epoch != self.paced_epoch:
                self.paced_epoch, self.paces = sample_epoch, ()
            gap: float | None = None
            if rank == 0:
                if sample_epoch == epoch and last_at is not None and metrics is None:
                    gap = max(at - last_at - took, 0.0) / made
                    self.paces = (*self.paces, gap)[-_PACES:]
                epoch, last_at = sample_epoch, at
            usual = median_low(self.paces) if len(self.paces) > 1 else 0.0
            seconds[place] += made * (usual if gap is None or gap > _PAUSED * usual else gap)
        return {**columns, "seconds": seconds}

    def _end_row(self) -> None:
        self.in_a_row, self.row_steps, self.row_seconds, self.row_pauses = 0, 0, 0.0, 0.0

    def add(self, columns: Columns) -> None:
        busy = columns.get(_BUSY, columns["seconds"])
        for (rank, epoch, at), seconds in zip(rows(columns, _PAUSE_FIELDS), busy, strict=True):
            if rank != 0 or epoch < self.epoch:
                continue
            if epoch == self.epoch and self.last_at is not None and at > self.last_at:
                self.seconds += at - self.last_at
                self.busy_seconds += min(seconds, at - self.last_at)
            self.epoch, self.last_at = epoch, at

    @classmethod
    def of_state(cls, state: Sequence[Any]) -> Pauses:
        """What had this state, its fields in their order; those of an older release have fewer."""
        found = cls(*state)
        found.paces = tuple(found.paces)
        return found
