"""What keeps a running job from making steps, as far as rows tell: none comes, a worker is being replaced, its size
changes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import NamedTuple

from optimus_scheduler.forecast.time_left import SOONEST_LATE_SECONDS
from optimus_scheduler.model import Directive, JobState, PlacedTask
from optimus_scheduler.model.format import lasted, time_words
from optimus_service.observe.spec import is_after_last_step, silent_since, stepped_at
from optimus_service.store.records import (
    REPLACED,
    DecisionRecord,
    JobRecord,
    MembershipRecord,
    SampleRecord,
    TaskAges,
    TaskRecord,
)
from optimus_service.store.repository import Repository

_STALLED_STEPS, _STALLED_SECONDS = 5.0, 15.0
"""A job is said to have stalled when no step came for as long as so many took, and for so long; telemetry may be a few
seconds late, and comes up to 5 s after the service listens again."""
_STALLED_REPORTS = 2.0
"""A script may tell each hundredth step: it has stalled when none came for as long as so many of its reports cover."""
_LISTENING_SECONDS = 10.0
"""When the service has listened for so long, all that workers had made before has come."""
_UNHEARD = "not heard of since the service started again: its figures are of before"
USUAL_SAMPLES = 20
"""Of so many of the newest samples the steps of a job are timed."""
_LATE_SECONDS = 300.0
"""A sample comes no later than this after its last step, by the clock of the service."""
SECONDS_OLD, GOES_ON_SECONDS = 5.0, 1.0
"""What is kept of standstills is no older than that; and of those that are told, and while the service begins to
listen."""
REPLACING = "a worker is being replaced"
HUNG = 5
"""The exit code of a worker whose code hung ..."""
_KILLED = 137
"""... and of one that was killed, by its own code or for its memory."""


class Standstill(NamedTuple):
    """Why a job makes no step now, or is likely to make none soon or after the step where it failed."""

    words: str
    """A phrase: `no step came for 40 s, where one took 2.0 s`."""
    is_stalled: bool
    """Nothing tells whether it goes on."""
    is_replaced: bool = False
    """A worker is gone, and the one in its place does not take part yet."""
    hung_at: int | None = None
    """The last step where its workers hung, which it has not passed; 0: before they had made one."""
    failed_at: int | None = None
    """The step by which its last try had ended with an error, or its workers were killed more than once, which this one
    has not passed."""
    may_fail: bool = False
    """Whether it ended with an error there: it may do so again, and leave its room."""
    is_unheard: bool = False
    """It trains as far as is known, but what it has done while the service was away has not come yet."""

    @property
    def is_silent(self) -> bool:
        """Whether no step comes at the moment."""
        return self.is_replaced or (self.is_stalled and self.hung_at is None)

    @property
    def fails_at(self) -> int | None:
        """The step by which it may fail again, if it comes to it; None: nothing tells."""
        return self.failed_at if self.may_fail and not self.is_stalled else None

    @property
    def may_not_end(self) -> bool:
        """Whether nothing tells that it goes on to its end."""
        return self.is_stalled or self.failed_at is not None

    @property
    def is_without_end(self) -> bool:
        """Whether nothing tells when it ends."""
        return self.may_not_end or self.is_unheard


Standstills = Mapping[str, Standstill]
"""By job id, of those that make no step or are likely to make none soon."""
_EndedTasks = Mapping[str, Sequence[tuple[TaskRecord, int]]]
"""By job id, of those that have any: tasks that hung or were killed, and the step by which each of them ended."""


def standstills(
    repository: Repository,
    jobs: Iterable[JobRecord],
    decisions: Mapping[str, DecisionRecord],
    now: float,
    listens_since: float,
    samples: Mapping[str, Sequence[SampleRecord]] = MappingProxyType({}),
) -> dict[str, Standstill]:
    """Of these jobs, and of those whose ends they wait for by `decisions`; a few statements. Of one without tasks, that
    it was paused before it had passed the step where it hung or failed: its end is told no sooner than of one with
    tasks.

    `listens_since`: POSIX seconds from which on the service could hear of steps. `samples`: the newest ones of jobs of
    which they were read already.
    """
    found = {job.id: job for job in jobs}
    found |= awaited_by(decisions.values())
    running = {job.id: job for job in found.values() if job.state is JobState.RUNNING and _trains(job)}
    paused = {job.id: job for job in found.values() if _has_begun_and_pauses(job)}
    ended = _ended_tasks(repository, paused)
    failed = _killed_again(paused, ended) | _failed(repository, running | paused)
    failed = _with_failures(_as_hung(_hung(paused, ended)), failed)
    if not running:
        return failed
    listens_since = listens_since if now < listens_since + _LISTENING_SECONDS else 0.0
    # Most jobs tell of steps and have had their tasks for long: of these no sample and no task is read.
    ages, newest = repository.tasks.ages(running), dict(samples)
    in_doubt = {each for each, job in running.items() if _is_in_doubt(job, ages.get(each), now, listens_since)}
    if unread := in_doubt - samples.keys():
        newest |= repository.samples.newest_of_each(unread, 1)
    # Few are silent, and only of these the usual time of a step is asked for.
    silence = {each: _silent_seconds(newest[each], now, listens_since) for each in unread if newest.get(each)}
    if silent := {each for each, seconds in silence.items() if seconds >= _STALLED_SECONDS}:
        newest |= repository.samples.newest_of_each(silent, USUAL_SAMPLES)
    steady = [each for each, job in running.items() if each in in_doubt and job.running == job.wanted]
    changing = [each for each in steady if each in ages and _are_young(ages[each], newest.get(each, ()))]
    memberships = repository.memberships.of_jobs(changing)
    tasks: dict[str, list[TaskRecord]] = {}
    for task in repository.tasks.select(job_ids=memberships) if memberships else ():
        tasks.setdefault(task.key.job_id, []).append(task)
    found_words = {
        job_id: stalled(newest.get(job_id, ()), now, max(listens_since, job.formed_at or 0.0))
        for job_id, job in running.items()
        if not is_after_last_step(job)  # no further step is to come: it saves or evaluates
    }
    stalls = {each: Standstill(words, is_stalled=True) for each, words in found_words.items() if words is not None}
    replaced = [each for each in tasks if is_replaced(memberships[each], tasks[each])]
    # Few jobs have a worker that was replaced, and only of these what has ended is read.
    ended = _ended_tasks(
        repository, {job_id: running[job_id] for job_id, its in ages.items() if its.highest_incarnation > 0}
    )
    hung = _hung(running, ended)
    unheard = _counted_by_steps(repository, _unheard(running, listens_since))
    found_now = (
        {each: Standstill(_UNHEARD, is_stalled=False, is_unheard=True) for each in unheard}
        | _as_hung(hung)
        | stalls
        | {each: _replaced(hung.get(each)) for each in replaced}
    )
    return _with_failures(found_now, _killed_again(running, ended) | failed)


def silent_jobs(repository: Repository, now: float, listens_since: float) -> dict[str, float]:
    """When the newest step came of jobs whose next one may be late, by id, POSIX seconds; without those that were not
    heard of since the service listens."""
    newest = {job.id: stepped_at(job) for job in repository.jobs.without_step_since(now - SOONEST_LATE_SECONDS)}
    return {job_id: at for job_id, at in newest.items() if at is not None and at >= listens_since}


def without_end(still: Standstills, *, with_unheard: bool = False) -> dict[str, int | None]:
    """Those of which nothing tells that they go on to their ends, by id, with the steps by which they may fail again.

    `with_unheard`: also those of which nothing tells when they end, as they were not heard of yet. A look that is told
    for minutes counts them as going on; what is asked and told in the same moment knows no more than lists do.
    """
    return {
        job_id: each.fails_at
        for job_id, each in still.items()
        if each.may_not_end or (with_unheard and each.is_without_end)
    }


def _as_hung(hung: Mapping[str, tuple[str, int]]) -> dict[str, Standstill]:
    return {each: Standstill(words, is_stalled=True, hung_at=at) for each, (words, at) in hung.items()}


def _with_failures(found: Mapping[str, Standstill], failed: Mapping[str, Standstill]) -> dict[str, Standstill]:
    return dict(found) | {
        each: found.get(each, one)._replace(failed_at=one.failed_at, may_fail=one.may_fail)
        for each, one in failed.items()
    }


def _unheard(running: Mapping[str, JobRecord], listens_since: float) -> list[JobRecord]:
    """Those that came before the service began to listen, and of which nothing has come since; 0: that is long ago."""
    return [job for job in running.values() if max(job.created_at, silent_since(job) or 0.0) < listens_since]


def _counted_by_steps(repository: Repository, unheard: Iterable[JobRecord]) -> list[str]:
    """Those of these jobs of which something is to be heard: not those that have told no step and whose time left the
    last look at the queue took from their age."""
    told = {job.id: job.first_step is not None for job in unheard}
    looks = repository.rounds.latest_decisions([each for each, has_told in told.items() if not has_told])
    by_age = {each for each, one in looks.items() if one.expected is not None and one.expected.steps_left is None}
    return [each for each in told if each not in by_age]


def awaited_by(decisions: Iterable[DecisionRecord]) -> dict[str, JobRecord]:
    """The jobs whose ends are waited for by these decisions, by id."""
    awaited = [one.job for each in decisions if each.expected for one in each.expected.behind]
    return {job.id: job for job in awaited if job is not None}


def _replaced(hung: tuple[str, int] | None) -> Standstill:
    if hung is None:
        return Standstill(REPLACING, is_stalled=False, is_replaced=True)
    words, at = hung
    return Standstill(f"{REPLACING}; {words}", is_stalled=True, is_replaced=True, hung_at=at)


def _failed(repository: Repository, jobs: Mapping[str, JobRecord]) -> dict[str, Standstill]:
    """Of jobs that are tried again after an error, by themselves or as their owner asked for it, and have not passed
    the step where it came, or were paused before."""
    again = [job_id for job_id, job in jobs.items() if job.last_error is not None]
    found = {}
    for job_id, memberships in (repository.memberships.of_jobs(again) if again else {}).items():
        tries = [after for before, after in pairwise(memberships) if before.workers and after.cause == "resume"]
        at = max((each.step + each.lost_steps for each in tries), default=0)
        if jobs[job_id].step <= at > 0:
            words = f"its last try ended with an error after step {tries[-1].step + tries[-1].lost_steps}"
            found[job_id] = Standstill(words, is_stalled=False, failed_at=at, may_fail=True)
    return found


def _killed_again(jobs: Mapping[str, JobRecord], ended: _EndedTasks) -> dict[str, Standstill]:
    """Of jobs one of whose workers was killed at the same step more than once, which they have not passed.

    Once says little, as systems kill workers, too.
    """
    found = {}
    for job_id, tasks in ended.items():
        steps = Counter((task.key.rank, step) for task, step in tasks if task.exit_code == _KILLED)
        at, often = max(((step, often) for (_, step), often in steps.items() if often > 1), default=(0, 0))
        if jobs[job_id].step <= at > 0:
            words = f"a worker was killed {often} times after step {at}"
            found[job_id] = Standstill(words, is_stalled=False, failed_at=at)
    return found


def _hung(jobs: Mapping[str, JobRecord], ended: _EndedTasks) -> dict[str, tuple[str, int]]:
    """Of jobs whose workers hung and that have not passed the steps where they did, so that they may do so again: a
    phrase, and the last of these steps."""
    found = {}
    for job_id, tasks in ended.items():
        hung = [(step, task) for task, step in tasks if task.exit_code == HUNG]
        at = max((step for step, _ in hung), default=-1)
        if jobs[job_id].step <= at:
            # One that was asked to leave while it hung is told to be none of its hangs: it counts where it is alone.
            steps = sorted(step for step, task in hung if task.unwanted_since is None) or [at]
            often = "once" if len(steps) == 1 else f"{len(steps)} times"
            found[job_id] = f"its workers hung {often}, {_after(steps, jobs[job_id])}", at
    return found


def _after(steps: Sequence[int], job: JobRecord) -> str:
    """After which steps its workers hung: the last ones that they had told. Where each goes on by itself, others may
    have made some of them since.

    `steps`: by which they hung, increasing."""
    last = steps[-1]
    if not last:
        return "before a step was made"
    first = next(each for each in steps if each)  # one that had not joined again tells no step
    if job.asked.mode == "async":
        return f"at step {last} or before"
    return f"after step {last}" if first == last else f"after steps {first} to {last}"


def _ended_tasks(repository: Repository, jobs: Mapping[str, JobRecord]) -> _EndedTasks:
    """Of the present attempts, without tasks that were killed because they did not leave when they were asked to."""
    if not jobs:
        return {}
    ended: dict[str, list[TaskRecord]] = {}
    for task in repository.tasks.with_exit_codes((HUNG, _KILLED), jobs):
        counts = task.exit_code == HUNG or task.unwanted_since is None
        if counts and task.attempt == jobs[task.key.job_id].attempt:
            ended.setdefault(task.key.job_id, []).append(task)
    return {
        job_id: [(task, _ended_at(task.key.name, memberships, jobs[job_id].step)) for task in ended[job_id]]
        for job_id, memberships in repository.memberships.of_jobs(list(ended)).items()
    }


def _ended_at(name: str, memberships: Sequence[MembershipRecord], step: int) -> int:
    """The step by which this worker ended: with it the first membership without the worker began; as long as there is
    none, the job has made no further one. 0: it had not joined."""
    last = max((number for number, each in enumerate(memberships) if name in each.workers), default=None)
    if last is None:
        return 0
    after = memberships[last + 1 : last + 2]
    return after[0].step + after[0].lost_steps if after else step


class NewestStandstills:
    """Those of all jobs that have begun, a few seconds old: for whatever is read each second or tells of many jobs.
    Thread-safe."""

    def __init__(self) -> None:
        self._known: tuple[float, float, Standstills] = -math.inf, -math.inf, {}
        """When all were asked for, when these were asked for last, and these."""

    def at(self, repository: Repository, now: float, listens_since: float) -> Standstills:
        """As of now, or of up to `SECONDS_OLD` ago; of a job that goes on again, no longer than `GOES_ON_SECONDS`."""
        at, checked_at, found = self._known
        begins = now < listens_since + _LISTENING_SECONDS
        if not 0.0 <= now - at < (GOES_ON_SECONDS if begins else SECONDS_OLD):
            found = standstills(repository, repository.jobs.begun(), {}, now, listens_since)
            self._known = now, now, found
        elif found and now - checked_at >= GOES_ON_SECONDS:  # they are few
            jobs = repository.jobs.by_id(found.keys()).values()
            found = standstills(repository, jobs, {}, now, listens_since)
            self._known = at, now, found
        return found


def stalled(newest: Sequence[SampleRecord], now: float, since: float) -> str | None:
    """That no step comes where they came steadily, in words; None: they come, or nothing is known of how.

    Silence counts from the last step, but not from before `since`: the service has just begun to listen, or the job's
    present tasks took no part yet.
    """
    if not newest:
        return None
    silent, last = _silent_seconds(newest, now, since), _last(newest)
    # A single sample may time its steps badly: the output of a script comes in bursts.
    same = [sample for sample in newest if sample.membership_epoch == last.membership_epoch]
    usual = sum(sample.seconds for sample in same) / max(sum(sample.n_steps for sample in same), 1)
    report = median(sample.seconds for sample in same)
    by_steps = max(_STALLED_STEPS * usual, _STALLED_SECONDS)
    if usual <= 0 or silent < max(by_steps, _STALLED_REPORTS * report):
        return None
    if _STALLED_REPORTS * report > by_steps and report > _STALLED_STEPS * usual:
        return f"no step came for {lasted(silent)}, where it tells one each {time_words(report)}"
    took = time_words(usual) if usual >= 1.0 else f"{usual:.2g} s"
    return f"no step came for {lasted(silent)}, where one took {took}"


def _silent_seconds(newest: Sequence[SampleRecord], now: float, since: float) -> float:
    return now - max(_last(newest).received_at, since)


def _last(newest: Sequence[SampleRecord]) -> SampleRecord:
    return max(newest, key=lambda sample: (sample.membership_epoch, sample.step))


def is_replaced(memberships: Sequence[MembershipRecord], tasks: Collection[TaskRecord | PlacedTask]) -> bool:
    """Whether a task was started that does not take part yet, in place of one that is gone."""
    if not memberships:
        return False
    had = {*memberships[-1].workers, *memberships[-1].servers}
    return not had <= {task.key.name for task in tasks}


def rescale_seconds(memberships: Iterable[MembershipRecord]) -> tuple[float, ...]:
    """How long training stood still each time that the job was given other tasks, oldest first."""
    return tuple(
        membership.pause_seconds
        for membership in memberships
        if membership.cause in ("start", "rescale", REPLACED) and membership.pause_seconds is not None
    )


def _trains(job: JobRecord) -> bool:
    return not job.running.is_empty and job.directive is Directive.RUN


def _has_begun_and_pauses(job: JobRecord) -> bool:
    """One that hung before its first step, was paused by its owner and let go on is queued again."""
    return job.state is JobState.PAUSED or (job.state is JobState.QUEUED and job.started_at is not None)


def _is_in_doubt(job: JobRecord, tasks: TaskAges | None, now: float, listens_since: float) -> bool:
    """Whether it may make no step, or have a task that takes no part yet: what its row and the ages of its tasks do not
    rule out."""
    if job.step_at is None or tasks is None:
        return True
    is_silent = now - max(job.step_at, listens_since) >= _STALLED_SECONDS
    return is_silent or tasks.newest_at > job.step_at - _LATE_SECONDS


def _are_young(tasks: TaskAges, newest: Sequence[SampleRecord]) -> bool:
    """Whether a task is younger than the last step."""
    return tasks.newest_at > max((each.at for each in newest), default=0.0)
