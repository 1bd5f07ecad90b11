"""What must hold in a world, and what has been acknowledged in it so far: checked after every event.

The books are kept by what callers were told and what processes did, not by what the service believes: they read the
database by a connection of their own.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

from optimus_scheduler.model import JobState, Resources
from optimus_service.clusters.base import TaskLaunch
from optimus_service.store.samples.sample_documents import unpack
from optimus_world.kernel import Process
from optimus_world.users import CAPPED, CAPPED_CORES

if TYPE_CHECKING:
    from optimus_world.world import World

_FINAL = tuple(state.value for state in JobState if state.is_final)
QUOTA_SECONDS = 300.0
"""After the beginning: from then on the quota is in force."""
STALE_STARTS = 1
"""Tasks that a leader may start which was deposed between its look at the lease and the call to the cluster."""
EARLY = 0.9
"""A job that is ended for its `max_seconds` has trained this part of them at least, by the clock that nobody sets."""
_TASKS_LEAVE_SECONDS = 600.0
"""Once nothing goes wrong any more, the tasks of an ended job are gone after so long."""

SampleKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that was broken."""

    at: float
    invariant: str
    what: str


@dataclass
class Job:
    """What the books know of a job of the database."""

    state: str
    started_at: float | None = None
    """Of virtual time."""
    ended_at: float | None = None
    end: tuple[str, str | None] | None = None
    """State and result, once it has ended."""
    directive: str = "run"


@dataclass
class Books:
    """Everything that was acknowledged, and the checks of it."""

    world: World
    broken: Callable[[str, str], None]
    submissions: dict[str, str] = field(default_factory=dict)
    """Job ids by idempotency key."""
    samples: dict[str, set[SampleKey]] = field(default_factory=dict)
    """Counted, as a worker was told, by job."""
    jobs: dict[str, Job] = field(default_factory=dict)
    calm_since: float | None = None
    """Since when nothing goes wrong any more; None: things go wrong."""
    n_samples: int = 0
    n_lost_unknown: int = 0
    """Samples that came before the service knew of two memberships: the worker is told, and drops them."""
    _leader: str = ""
    _deleting: set[str] = field(default_factory=set)
    _reopening: set[str] = field(default_factory=set)
    _stale_starts: dict[str, int] = field(default_factory=dict)
    _read: dict[str, list[SampleKey]] = field(default_factory=dict)
    """Samples of the database that were read before, by job."""

    def __post_init__(self) -> None:
        self._look = self.world.database.look()

    # --- what is told ------------------------------------------------------------------------------------------------

    def submitted(self, key: str, job_id: str) -> None:
        """A submission was acknowledged."""
        if self.submissions.setdefault(key, job_id) != job_id:
            self.broken("a submission makes one job", f"{key} made {self.submissions[key]} and {job_id}")

    def asked(self, kind: str, job_id: str) -> None:
        """Something is about to be asked for, which may happen even if no answer comes."""
        if kind == "delete":
            self._deleting.add(job_id)
        if kind == "resume":
            self._reopening.add(job_id)

    def told(self, kind: str, job_id: str) -> None:
        """It was acknowledged."""
        if kind == "cancel" and self.jobs[job_id].end is None:
            row = self._look.execute("SELECT state, directive FROM jobs WHERE id = ?", (job_id,)).fetchone()
            is_off = row is None or row["state"] in _FINAL or row["directive"] == "cancel"
            if not is_off and job_id not in self._reopening:
                self.broken("a cancelled job ends", f"{job_id} was cancelled, and is to {row['directive']}")

    def answered(self, sender: str, request: httpx.Request, status: int, body: bytes) -> None:  # noqa: ARG002
        """An answer has reached its caller."""
        if status != 200 or not request.url.path.endswith("/telemetry"):
            return
        columns = json.loads(request.content).get("columns")
        if not columns:
            return
        sent = list(zip(columns["membership_epoch"], columns["rank"], columns["sequence"], strict=True))
        job_id = request.url.path.split("/")[3]
        why = {each["index"]: each["why"] for each in json.loads(body)["ignored"]}
        self.n_lost_unknown += sum(each == "unknown_membership" for each in why.values())
        counted = {key for index, key in enumerate(sent) if why.get(index, "duplicate") == "duplicate"}
        self.samples.setdefault(job_id, set()).update(counted)
        self.n_samples += len(counted)
        self._check_samples(job_id, counted, since=1)

    # --- what processes do -------------------------------------------------------------------------------------------

    def wrote(self, process: Process | None, fiber: str, tables: set[str], connection: sqlite3.Connection) -> None:
        """A transaction is about to be committed: what rounds write, only the holder of the lease may."""
        if process is None or fiber != "loop" or not tables - {"leases"}:
            return
        holder = _holder(connection)
        mine = self.world.holder_of(process)
        if mine != holder:
            self.broken("one leader writes", f"{process.name} wrote {sorted(tables)} while {holder} has the lease")

    def started(self, process: Process | None, launch: TaskLaunch) -> None:
        """A task is about to be started."""
        if process is None:
            return
        is_leader = self.world.holder_of(process) == _holder(self._look)
        n_stale = 0 if is_leader else self._stale_starts.get(process.name, 0) + 1
        self._stale_starts[process.name] = n_stale
        if n_stale > STALE_STARTS:
            self.broken(
                "one leader acts", f"{process.name} starts {launch.key.name}, deposed since {n_stale - 1} starts"
            )
        used = self.world.machines.used(launch.node) + launch.resources
        capacity = self.world.machines.all_nodes[launch.node].capacity
        if is_leader and not used.fits_in(capacity) and not self._moves(launch.key.job_id):
            self.broken("no node over capacity", f"{launch.key.name} does not fit {launch.node}: {_words(used)}")

    def _moves(self, job_id: str) -> bool:
        """Whether the job had tasks, when its round looked, that leave once its newcomers have joined: it may be one of
        several that would wait for each other's places, which start (`optimus_scheduler.reconcile`)."""
        row = self._look.execute("SELECT wanted_tasks FROM jobs WHERE id = ?", (job_id,)).fetchone()
        wanted = {(role, rank, incarnation) for role, rank, incarnation, _ in json.loads(row["wanted_tasks"])}
        return any(tuple(task) not in wanted for task in self._look.execute(_LIVE_TASKS, (job_id,)))

    # --- checks ------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """After an event: what the database says now against what it said and what was acknowledged."""
        written = self.world.database.written
        if not written:
            return
        if "leases" in written:
            self._note_leader()
        has_jobs = "jobs" in written
        written.clear()
        if not has_jobs:
            return
        rows = {row["id"]: row for row in self._look.execute(_JOBS)}
        for job_id in self.submissions.values():
            if job_id not in rows and job_id not in self._deleting:
                self.broken("no acknowledged job is lost", f"{job_id} is not there any more")
        if len({row["name"] for row in rows.values()}) < len(rows):
            self.broken("a submission makes one job", "two jobs have one name")
        for row in rows.values():
            self._check_job(row)
        self._check_quota(list(rows.values()))

    def _check_job(self, row: sqlite3.Row) -> None:
        job = self.jobs.setdefault(row["id"], Job(""))
        now = self.world.kernel.now
        if job.state != row["state"]:
            self.world.say(f"{row['id']} is {row['state']} at step {row['step']}")
            if row["state"] == JobState.FAILED.value:
                self.broken("no job fails by accidents", f"{row['id']}: {self._failure(row['id'])}")
        job.state = row["state"]
        if row["started_at"] is not None and job.started_at is None:
            job.started_at = now
        if job.directive == "cancel" != row["directive"] and row["id"] not in self._reopening:
            self.broken("a cancelled job ends", f"{row['id']} was to be cancelled, and is to {row['directive']} again")
        if row["directive"] != job.directive:
            job.directive = row["directive"]
            if job.directive == "finish":
                self._check_reason(row["id"], job)
        if job.end is not None and job.end != (row["state"], row["result"]):
            if row["id"] not in self._reopening:
                self.broken("the end of a job is kept", f"{row['id']} was {job.end[0]}, and is {row['state']} now")
            self._reopening.discard(row["id"])
            job.end = job.ended_at = None
        if row["state"] in _FINAL and job.end is None:
            job.end, job.ended_at = (row["state"], row["result"]), now

    def _failure(self, job_id: str) -> str:
        row = self._look.execute("SELECT failure FROM jobs WHERE id = ?", (job_id,)).fetchone()
        return str(row["failure"]).partition("\n")[0]

    def _check_reason(self, job_id: str, job: Job) -> None:
        """A job that is finished for its time has had it."""
        found = self._look.execute(_WHY, (job_id,)).fetchone()
        if found is None or "max_seconds" not in found["message"] or job.started_at is None:
            return
        limit = json.loads(self._look.execute(_SPEC, (job_id,)).fetchone()["spec"])["convergence"]["max_seconds"]
        trained = self.world.kernel.now - job.started_at
        if trained < EARLY * limit:
            self.broken("no clock ends a job", f"{job_id} was finished after {trained:.0f} s of {limit:.0f} s")

    def _check_quota(self, rows: list[sqlite3.Row]) -> None:
        if self.world.kernel.now < QUOTA_SECONDS:
            return
        mine = [row for row in rows if row["project"] == CAPPED and row["state"] not in _FINAL]
        cores = sum(row["wanted_workers"] + row["wanted_servers"] for row in mine)
        if cores > CAPPED_CORES:
            self.broken("quotas hold", f"jobs of {CAPPED} are given {cores} cores of {CAPPED_CORES}")

    def _check_samples(self, job_id: str, keys: set[SampleKey], since: int = 0) -> None:
        """`since`: samples before that id are not read again."""
        if job_id in self._deleting:
            return
        stored = self._stored(job_id, since)
        if len(stored) != len(set(stored)):
            self.broken("no sample counts twice", f"{job_id} has {len(stored) - len(set(stored))} samples twice")
        missing = keys - set(stored)
        if missing:
            self.broken("no acknowledged sample is lost", f"{job_id} lost {len(missing)}, one is {min(missing)}")

    def _stored(self, job_id: str, since: int) -> list[SampleKey]:
        known = self._read.setdefault(job_id, [])
        if since == 0:
            known.clear()
        for row in self._look.execute(_SAMPLES, (job_id, len(known))):
            found = unpack(row["document"])
            known += zip(found["membership_epoch"], found["rank"], found["sequence"], strict=True)
        return known

    def _note_leader(self) -> None:
        holder = _holder(self._look)
        if holder != self._leader:
            self._leader = holder
            self.world.say(f"{self.world.name_of(holder)} leads")

    def check_slowly(self) -> None:
        """From time to time: all samples that were ever acknowledged; tasks that should not be there any more."""
        for job_id, keys in self.samples.items():
            self._check_samples(job_id, keys)
        now = self.world.kernel.now
        if self.calm_since is None or now - self.calm_since < _TASKS_LEAVE_SECONDS:
            return
        for running in self.world.machines.alive():
            job = self.jobs.get(running.launch.key.job_id)
            if job is not None and job.ended_at is not None and now - job.ended_at > _TASKS_LEAVE_SECONDS:
                self.broken("tasks of ended jobs leave", f"{running.launch.key.name} runs on")

    def generations(self) -> dict[str, int]:
        """What each job should have, by the number of the last change."""
        return {row["id"]: row["generation"] for row in self._look.execute("SELECT id, generation FROM jobs")}

    def name_of(self, job_id: str) -> str:
        """As its owner called it."""
        return str(self._look.execute("SELECT name FROM jobs WHERE id = ?", (job_id,)).fetchone()["name"])

    def unfinished(self) -> list[str]:
        """Jobs that have not ended."""
        return sorted(job_id for job_id, job in self.jobs.items() if job.end is None and job_id not in self._deleting)


_JOBS = "SELECT id, name, project, state, directive, result, step, started_at, wanted_workers, wanted_servers FROM jobs"
_LIVE_TASKS = (
    "SELECT role, rank, incarnation FROM tasks WHERE job_id = ? AND exited_at IS NULL AND role != 'coordinator'"
)
_WHY = "SELECT message FROM events WHERE job_id = ? AND type IN ('Converged', 'LimitReached') ORDER BY id DESC LIMIT 1"
_SPEC = "SELECT spec FROM jobs WHERE id = ?"
_SAMPLES = "SELECT document FROM sample_batches WHERE job_id = ? AND last_id > ? ORDER BY last_id"


def _holder(connection: sqlite3.Connection) -> str:
    """Who has the lease, over or not."""
    row = connection.execute("SELECT holder FROM leases").fetchone()
    return "" if row is None else str(row[0])


def _words(amount: Resources) -> str:
    return f"{amount.cpu:g} cores"
