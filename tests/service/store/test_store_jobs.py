"""Submission, listing and lifecycle of jobs."""

from __future__ import annotations

import base64
import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import text
from tests.service.store.store_builders import (
    MakeJob,
    a_decision,
    a_round,
    a_sample,
    add_samples,
    placed,
    put_task,
    set_wanted,
)

from optimus_scheduler.ahead.queue import ExpectedCut
from optimus_scheduler.lifecycle import (
    AllTasksGone,
    CancelRequested,
    ConvergenceReached,
    Event,
    InvalidTransition,
    MembershipFormed,
    Outcome,
    Paused,
    ResultReported,
    ResumeRequested,
    TooManyFailures,
)
from optimus_scheduler.model import NOTHING, Allocation, Directive, Interval, JobState, Role
from optimus_service.store.errors import IdempotencyConflict, InvalidCursor, JobIdTaken, JobIsActive, JobNotFound
from optimus_service.store.jobs import listing
from optimus_service.store.records import ExpectedTimesRecord, SubmittedJob
from optimus_service.store.repository import MAX_PAGE, Repository

SPEC = {"name": "digits", "project": "vision", "task": "m:f", "task_args": {"rate": 0.1}, "seed": 2**63 - 1}


def test_a_submitted_job_is_queued_and_comes_back_as_it_was(repository: Repository) -> None:
    job, created = repository.jobs.create("digits-1", SPEC, "nonce", None, "hash", 12.25)
    assert created
    assert job == repository.jobs.get("digits-1")
    assert (job.state, job.directive, job.spec, job.created_at) == (JobState.QUEUED, Directive.RUN, SPEC, 12.25)
    assert (job.name, job.project, job.token_nonce) == ("digits", "vision", "nonce")
    assert (job.wanted, job.running, job.generation, job.membership_epoch) == (NOTHING, NOTHING, 0, 0)
    (event,) = repository.events.page("digits-1").items
    assert (event.type, event.at) == ("JobSubmitted", 12.25)


def test_an_equal_request_with_the_same_key_gives_the_stored_job(repository: Repository) -> None:
    first, created = repository.jobs.create("digits-1", SPEC, "nonce", "key", "hash", 1.0)
    again, created_again = repository.jobs.create("digits-2", SPEC, "other", "key", "hash", 2.0)
    assert (created, created_again) == (True, False)
    assert again == first
    assert len(repository.jobs.page().items) == 1
    assert len(repository.events.page().items) == 1


def test_another_request_with_the_same_key_is_a_conflict(repository: Repository) -> None:
    repository.jobs.create("digits-1", SPEC, "nonce", "key", "hash", 1.0)
    with pytest.raises(IdempotencyConflict) as conflict:
        repository.jobs.create("digits-2", SPEC, "nonce", "key", "other", 2.0)
    assert conflict.value.job_id == "digits-1"


def test_a_submission_is_found_by_its_key(repository: Repository) -> None:
    assert repository.jobs.find_submission("key", "hash") is None
    job, _ = repository.jobs.create("digits-1", SPEC, "nonce", "key", "hash", 1.0)
    assert repository.jobs.find_submission("key", "hash") == job
    with pytest.raises(IdempotencyConflict):
        repository.jobs.find_submission("key", "other")


@pytest.mark.parametrize("key", [None, "key"])
def test_a_job_id_is_given_once(repository: Repository, key: str | None) -> None:
    repository.jobs.create("digits-1", SPEC, "nonce", None, "hash", 1.0)
    with pytest.raises(JobIdTaken):
        repository.jobs.create("digits-1", SPEC, "nonce", key, "hash", 2.0)


def test_a_job_that_nobody_submitted_is_not_found(repository: Repository) -> None:
    for call in (
        lambda: repository.jobs.get("ghost"),
        lambda: repository.wanted.get("gh\0st"),
        lambda: repository.jobs.put_profile("ghost", {}),
        lambda: repository.tasks.put([], {"ghost": "127.0.0.1:1"}, 1.0),
        lambda: repository.jobs.advance("ghost", Paused(), 1.0),
        lambda: set_wanted(repository, "ghost", NOTHING, Directive.RUN, (), 1.0),
        lambda: add_samples(repository, "ghost", [a_sample()], 1.0),
        lambda: put_task(repository, placed("ghost", Role.WORKER, 0).key, "local-0", 1.0),
        lambda: repository.events.add("ghost", "Something", "happened", {}, 1.0),
    ):
        with pytest.raises(JobNotFound):
            call()


def test_text_and_documents_survive_what_databases_refuse(repository: Repository) -> None:
    spec = SPEC | {"environment": {"A": "nul \0, snow ☃, quote ' \""}, "odd": [math.inf, -math.inf]}
    job, _ = repository.jobs.create("digits-1", spec, "nonce", None, "hash", 1.0)
    assert job.spec == spec
    repository.jobs.put_profile("digits-1", {"figure": math.nan})
    profile = repository.jobs.get("digits-1").profile
    assert profile is not None
    assert math.isnan(profile["figure"])
    repository.jobs.advance("digits-1", TooManyFailures("exit \0 code"), 2.0)
    assert repository.jobs.get("digits-1").failure == "exit \ufffd code"


def test_the_version_counts_changes(repository: Repository, make_job: MakeJob) -> None:
    before = make_job().version
    repository.tasks.put([], {"job-1": "127.0.0.1:4000"}, 1.0)
    after = repository.jobs.get("job-1")
    assert (after.coordinator_address, after.version) == ("127.0.0.1:4000", before + 1)
    repository.tasks.put([], {"job-1": "127.0.0.1:4000"}, 1.0)
    assert repository.jobs.get("job-1").version == before + 1


# --- listing ---------------------------------------------------------------------------------------------------------


def _walk(repository: Repository, limit: int, **filters: object) -> list[str]:
    ids: list[str] = []
    cursor = None
    while True:
        page = repository.jobs.page(cursor=cursor, limit=limit, **filters)  # type: ignore[arg-type]
        assert len(page.items) <= limit
        ids += [job.id for job in page.items]
        cursor = page.next_cursor
        if cursor is None:
            return ids


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
def test_pages_give_every_job_once_newest_first(repository: Repository, make_job: MakeJob, limit: int) -> None:
    for number in range(5):
        make_job(f"job-{number}", at=float(number // 2))  # some were submitted at the same instant
    assert _walk(repository, limit) == ["job-4", "job-3", "job-2", "job-1", "job-0"]


def test_a_page_is_not_disturbed_by_a_new_job(repository: Repository, make_job: MakeJob) -> None:
    for number in range(4):
        make_job(f"job-{number}", at=float(number))
    page = repository.jobs.page(limit=2)
    make_job("job-9", at=9.0)
    rest = repository.jobs.page(limit=2, cursor=page.next_cursor)
    assert [job.id for job in (*page.items, *rest.items)] == ["job-3", "job-2", "job-1", "job-0"]


@pytest.mark.parametrize("limit", [1, 2, 100])
def test_submitted_jobs_are_given_once_oldest_first(repository: Repository, make_job: MakeJob, limit: int) -> None:
    for number, at in enumerate([1.0, 2.0, 2.0, 2.0, 3.0, 4.0]):
        make_job(f"a-{number}", at=at)
    make_job("b", at=2.0, project="other")

    def listed(project: str | None) -> list[str]:
        found: list[SubmittedJob] = []
        while page := repository.jobs.submitted(2.0, 4.0, project, found[-1] if found else None, limit):
            assert len(page) <= limit
            found += page
        return [job.id for job in found]

    assert listed("default") == ["a-1", "a-2", "a-3", "a-4"]
    assert listed("other") == ["b"]
    assert listed(None) == ["a-1", "a-2", "a-3", "b", "a-4"]
    assert repository.jobs.submitted(0.0, float("inf"), None, None, 100)[-1].id == "a-5"


def test_filters_combine(repository: Repository, make_job: MakeJob) -> None:
    make_job("a", name="digits-cnn", project="vision", at=1.0)
    make_job("b", name="digits-mlp", project="vision", at=2.0)
    make_job("c", name="digits-mlp", project="speech", at=3.0)
    make_job("d", name="a_b", project="speech", at=4.0)
    repository.jobs.advance("b", CancelRequested(), 5.0)
    assert _walk(repository, 1, project="vision") == ["b", "a"]
    assert _walk(repository, 1, name_contains="MLP") == ["c", "b"]
    assert _walk(repository, 1, states={JobState.QUEUED}, name_contains="digits") == ["c", "a"]
    assert _walk(repository, 1, states={JobState.CANCELLED, JobState.FAILED}) == ["b"]
    assert _walk(repository, 1, states=set()) == []
    assert _walk(repository, 1, name_contains="_") == ["d"]  # a wildcard of LIKE is a plain character here
    assert _walk(repository, 1, name_contains="%") == []
    assert _walk(repository, 1, name_contains="\0") == []
    assert _walk(repository, 1, name_contains="ISIO", name_match="any") == ["b", "a"]


def test_starting_jobs_are_those_that_their_records_say(repository: Repository, make_job: MakeJob) -> None:
    for number in range(6):
        make_job(f"job-{number}", at=float(number))
        if number % 2:
            set_wanted(repository, f"job-{number}", Allocation(1, 0), Directive.RUN, (), 9.0)
    repository.jobs.advance("job-1", MembershipFormed(1), 9.0)  # it trains
    repository.jobs.advance("job-3", CancelRequested(has_tasks=True), 9.0)
    starting = [job.id for job in repository.jobs.page().items if job.is_starting]
    assert _walk(repository, 1, states=set(), starting=True) == starting == ["job-5"]
    assert _walk(repository, 1, states={JobState.RUNNING}, starting=True) == ["job-5", "job-1"]
    assert _walk(repository, 1, states={JobState.QUEUED}, starting=True) == [
        "job-5",
        "job-4",
        "job-3",
        "job-2",
        "job-0",
    ]


def test_a_name_means_the_newest_active_job_else_the_newest(repository: Repository, make_job: MakeJob) -> None:
    for job_id, name, at in (("a", "cnn", 1.0), ("b", "cnn", 2.0), ("c", "cnn", 3.0), ("cnn-x", "b", 4.0)):
        make_job(job_id, name=name, at=at)

    def meant(text: str) -> list[str]:
        return [job.id for job in repository.jobs.page(name_contains=text, name_match="one").items]

    repository.jobs.advance("c", CancelRequested(), 5.0)
    assert meant("cnn") == ["b"]
    assert meant("b") == ["b"], "an id comes before a name"
    repository.jobs.advance("b", CancelRequested(), 6.0)
    assert meant("cnn") == ["a"]
    repository.jobs.advance("a", CancelRequested(), 7.0)
    assert meant("cnn") == ["c"]
    assert meant("cn") == meant("\0") == []


def _cursor(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "?",
        "ä",
        "bm90IGpzb24",
        _cursor(5),
        _cursor(["jobs", 1.5]),
        _cursor(["events", 1]),
        _cursor(["jobs", "a", 1.5]),
        _cursor(["jobs", math.nan, "a"]),
        _cursor(["jobs", -math.inf, "a"]),
        _cursor(["jobs", 1.5, "a\0"]),
        _cursor(["jobs", 1.5, "\ud800"]),
    ],
)
def test_a_foreign_cursor_is_refused(repository: Repository, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        repository.jobs.page(cursor=cursor)


def test_text_that_no_database_can_hold_is_stored_with_marks(repository: Repository, make_job: MakeJob) -> None:
    """A file name's odd bytes come as halves of surrogate pairs in messages of Python."""
    make_job("job-1")
    repository.events.add("job-1", "Odd", "a\0b\udcffc", {}, 2.0)
    assert repository.events.page("job-1").items[0].message == "a\ufffdb?c"


@pytest.mark.parametrize("cursor", [_cursor(["jobs", 1.5, "a"]), _cursor(["events", 2**70]), _cursor(["events", True])])
def test_a_cursor_of_another_listing_is_refused(repository: Repository, cursor: str) -> None:
    with pytest.raises(InvalidCursor):
        repository.events.page(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1, MAX_PAGE + 1])
def test_the_size_of_a_page_is_bounded(repository: Repository, limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        repository.jobs.page(limit=limit)


def test_active_jobs_and_counts(repository: Repository, make_job: MakeJob) -> None:
    for number in range(3):
        make_job(f"job-{number}", at=float(number))
    repository.jobs.advance("job-0", MembershipFormed(1), 5.0)
    repository.jobs.advance("job-1", CancelRequested(), 5.0)
    assert [job.id for job in repository.jobs.active()] == ["job-0", "job-2"]
    counts = repository.jobs.count_by_state()
    assert set(counts) == set(JobState)
    assert {state: count for state, count in counts.items() if count} == {
        JobState.QUEUED: 1,
        JobState.RUNNING: 1,
        JobState.CANCELLED: 1,
    }


# --- lifecycle -------------------------------------------------------------------------------------------------------


def test_a_life_from_start_to_result(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    assert repository.jobs.advance("job-1", MembershipFormed(1), 10.0).started_at == 10.0
    paused = repository.jobs.advance("job-1", Paused(), 20.0)
    assert (paused.state, paused.started_at) == (JobState.PAUSED, 10.0)
    assert repository.jobs.advance("job-1", MembershipFormed(2), 30.0).started_at == 10.0
    done = repository.jobs.advance(
        "job-1", ResultReported(Outcome.SUCCEEDED, 400, math.inf, {"test_accuracy": 0.97}), 40.0
    )
    assert done == repository.jobs.get("job-1")
    assert (done.state, done.finished_at, done.step, done.failure) == (JobState.SUCCEEDED, 40.0, 400, None)
    assert done.loss == math.inf, "the last samples did not come: the result has the newest loss"
    assert done.result == {
        "outcome": "succeeded",
        "step": 400,
        "final_loss": math.inf,
        "metrics": {"test_accuracy": 0.97},
        "error": None,
        "checkpoint": None,
        "model": None,
    }
    types = [event.type for event in repository.events.page("job-1").items]
    assert types == ["JobSucceeded", "JobResumed", "JobPaused", "JobStarted", "JobSubmitted"]


def test_a_repeated_result_changes_nothing(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    result = ResultReported(Outcome.FAILED, 3, error="ValueError: no")
    done = repository.jobs.advance("job-1", result, 10.0)
    assert (done.state, done.failure) == (JobState.FAILED, "ValueError: no")
    assert repository.jobs.advance("job-1", result, 20.0) == done


def test_a_job_that_ended_wants_and_has_nothing(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    tasks = [placed("job-1", Role.WORKER, 0)]
    generation = set_wanted(repository, "job-1", Allocation(1, 1), Directive.RUN, tasks, 1.0)
    done = repository.jobs.advance("job-1", ResultReported(Outcome.SUCCEEDED, 3), 2.0)
    assert (done.wanted, done.running, done.generation) == (NOTHING, NOTHING, generation + 1)
    assert repository.wanted.get("job-1").tasks == ()
    assert set_wanted(repository, "job-1", Allocation(1, 1), Directive.RUN, tasks, 3.0) == generation + 1
    assert repository.jobs.get("job-1") == done


def test_a_refused_transition_changes_nothing(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    done = repository.jobs.advance("job-1", CancelRequested(), 10.0)
    with pytest.raises(
        InvalidTransition, match=r"what happened before: JobSubmitted → CancelRequested → JobCancelled$"
    ):
        repository.jobs.advance("job-1", CancelRequested(), 20.0)
    assert repository.jobs.get("job-1") == done
    assert [event.type for event in repository.events.page("job-1").items].count("JobCancelled") == 1


def test_a_changed_directive_is_a_new_generation(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    running = repository.jobs.advance("job-1", MembershipFormed(1), 1.0)
    converged = repository.jobs.advance("job-1", ConvergenceReached("loss_decrease"), 2.0)
    assert (converged.state, converged.directive) == (JobState.RUNNING, Directive.FINISH)
    assert converged.generation == running.generation + 1
    assert repository.jobs.advance("job-1", ConvergenceReached("max_steps"), 3.0) == converged
    cancelling = repository.jobs.advance("job-1", CancelRequested(has_tasks=True), 4.0)
    assert (cancelling.directive, cancelling.generation) == (Directive.CANCEL, converged.generation + 1)
    assert repository.jobs.advance("job-1", AllTasksGone(), 5.0).state is JobState.CANCELLED


def test_active_jobs_share_the_names_of_fields(repository: Repository, make_job: MakeJob) -> None:
    """Ten thousand specifications are read once and stay in memory."""
    for job_id in ("job-1", "job-2"):
        make_job(job_id)

    def names(document: Mapping[str, Any]) -> Iterator[str]:
        for name, value in document.items():
            yield name
            yield from names(value) if isinstance(value, dict) else ()

    first, second = (list(names(job.spec)) for job in repository.jobs.active())
    assert first == second
    assert list(map(id, first)) == list(map(id, second))


def test_what_is_kept_of_rows_is_never_older_than_the_rows(repository: Repository, make_job: MakeJob) -> None:
    """Active jobs and their decisions are made anew only where rows changed; who changed them does not matter."""
    for job_id in ("job-1", "job-2"):
        make_job(job_id)
    repository.rounds.add(a_round(), [a_decision("job-1"), a_decision("job-2")])
    first, second = repository.jobs.active()
    asked = first.asked
    assert repository.jobs.active()[0] is first
    decided = repository.rounds.latest_decisions(["job-1", "job-2"])
    assert repository.rounds.latest_decisions(["job-1"])["job-1"] is decided["job-1"]

    with repository._engine.begin() as connection:  # somebody else, past every method and without a new version
        connection.execute(text("UPDATE jobs SET step = 7 WHERE id = 'job-1'"))
    changed, same = repository.jobs.active()
    assert (changed.step, same is second) == (7, True)
    assert changed.asked is asked, "an equal specification is read once"
    repository.jobs.set_spec("job-1", first.spec, first.spec | {"priority": 2.0}, {"priority": (1.0, 2.0)}, 1.0)
    assert repository.jobs.active()[0].asked.priority == 2.0
    assert repository.observed().jobs == tuple(repository.jobs.active())
    assert repository.observed().wanted == {job_id: repository.wanted.get(job_id) for job_id in ("job-1", "job-2")}

    with suppress(JobNotFound), repository.write() as tx:
        tx.rounds.add(a_round(at=2.0), [a_decision("job-2", reason="Paused")])
        assert tx.rounds.latest_decisions(["job-2"])["job-2"].reason == "Paused"
        tx.jobs.get("ghost")  # which undoes it all
    assert repository.rounds.latest_decisions(["job-2"])["job-2"] == decided["job-2"]
    repository.rounds.put_expected_times(
        [ExpectedTimesRecord(job_id="job-2", at=3.0, valid_until=9.0, start=None, end=None)]
    )
    times = repository.rounds.latest_decisions(["job-2"])["job-2"].expected
    assert times is not None
    assert times.at == 3.0
    cut = ExpectedCut(Interval(7.0, 6.0, 8.0), pauses=True, job_id="job-1", why="sooner")
    losing = replace(times, cut=cut, freed_by="job-1")
    repository.rounds.put_expected_times([losing])
    assert repository.rounds.latest_decisions(["job-2"])["job-2"].expected == losing

    repository.jobs.advance("job-1", CancelRequested(), 4.0)
    assert [job.id for job in repository.jobs.active()] == ["job-2"]
    assert "job-1" not in repository._kept.jobs
    assert repository.rounds.latest_decisions(["job-1"])["job-1"] == decided["job-1"]


def test_the_counts_of_ended_jobs_are_those_of_the_rows(repository: Repository, make_job: MakeJob) -> None:
    """Whatever ends jobs, takes them up again and deletes them, one by one or together."""
    chance = random.Random(7)
    events: list[Event] = [
        CancelRequested(),
        TooManyFailures("it failed"),
        ResultReported(outcome=Outcome.SUCCEEDED, step=3),
        AllTasksGone(),
        ResumeRequested(),
    ]
    for number in range(12):
        make_job(f"job-{number}", project=chance.choice(["vision", "speech"]))
    left = [f"job-{number}" for number in range(12)]
    for _ in range(150):
        chosen = chance.sample(left, min(3, len(left)))
        try:
            if chance.random() < 0.1:
                repository.retention.delete_job(chosen[0])
                left.remove(chosen[0])
            else:
                repository.jobs.advance_together({job_id: chance.choice(events) for job_id in chosen}, 1.0)
        except JobIsActive:
            continue
        assert repository.jobs.count_by_state() == _counted(repository, None)
        assert repository.jobs.count_by_state(["vision"]) == _counted(repository, "vision")
    assert len(left) < 12
    assert sum(repository.jobs.count_by_state([]).values()) == 0


def _counted(repository: Repository, project: str | None) -> dict[JobState, int]:
    """By reading all jobs."""
    jobs = repository.jobs.page(project=project, limit=MAX_PAGE).items
    return {state: sum(job.state is state for job in jobs) for state in JobState}


def test_a_part_of_a_name_is_looked_for_in_some_jobs_at_a_time(
    repository: Repository, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "LOOKED_THROUGH", 3)
    for number in range(10):
        make_job(f"job-{number}", name=f"Digits-{number}" if number in (0, 1, 7, 8, 9) else "other", at=float(number))
    pages: list[list[str]] = []
    cursor = None
    while cursor is not None or not pages:
        page = repository.jobs.page(name_contains="digit", cursor=cursor, limit=1)
        pages.append([job.id for job in page.items])
        cursor = page.next_cursor
    assert [job_id for each in pages for job_id in each] == ["job-9", "job-8", "job-7", "job-1", "job-0"]
    assert [] in pages, "five jobs of another name lie between"
    assert len(pages) <= 8


def test_jobs_are_listed_by_labels_and_whatever_else(repository: Repository, make_job: MakeJob) -> None:
    """Each combination of conditions, page by page, against a look at all jobs."""
    chance = random.Random(7)
    for number in range(60):
        own = {name: chance.choice("xy") for name in ("sweep", "team") if chance.random() < 0.7}
        make_job(f"job-{number:02d}", name=chance.choice(["digits", "other"]), at=float(number // 3), labels=own)
        if number % 4 == 0:
            repository.jobs.advance(f"job-{number:02d}", CancelRequested(), 50.0)
    every = [(job, job.spec["labels"]) for job in repository.jobs.page(limit=MAX_PAGE).items]
    wanted: list[dict[str, str | None]] = [{"sweep": "x"}, {"sweep": None}, {"sweep": "x", "team": "y"}, {"none": None}]
    for labels, states, name in itertools.product(
        wanted, [None, {JobState.QUEUED}, {JobState.CANCELLED}, set(JobState)], [None, "digits"]
    ):
        found: list[str] = []
        cursor: str | None = None
        while cursor != "the end":
            page = repository.jobs.page(states, labels=labels, name_contains=name, cursor=cursor, limit=4)
            found += [job.id for job in page.items]
            cursor = page.next_cursor or "the end"
        assert found == [
            job.id
            for job, has in every
            if all(label in has and value in (None, has[label]) for label, value in labels.items())
            and (states is None or job.state in states)
            and name in (None, job.name)
        ]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_labels_that_an_earlier_release_stored_are_in_order_after_an_hour(
    repository: Repository, make_job: MakeJob
) -> None:
    for number in range(3):
        make_job(f"job-{number}", at=float(number + 1), labels={"sweep": "x"})
    with repository._engine.begin() as connection:
        connection.execute(text("UPDATE job_labels SET created_at = DEFAULT WHERE job_id = 'job-2'"))

    def listed() -> list[str]:
        return [job.id for job in repository.jobs.page(labels={"sweep": "x"}).items]

    assert listed() == ["job-1", "job-0", "job-2"]
    repository.retention.mend_after_upgrade()
    assert listed() == ["job-2", "job-1", "job-0"]


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_jobs_that_an_earlier_release_ended_are_counted_once_a_day(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2", "job-3"):
        make_job(job_id)
    repository.jobs.advance("job-1", CancelRequested(), 1.0)
    with repository._engine.begin() as connection:
        connection.execute(text("UPDATE jobs SET state = 'failed' WHERE id = 'job-2'"))
    assert repository.jobs.count_by_state() != _counted(repository, None)
    repository.retention.mend_after_upgrade()
    assert repository.jobs.count_by_state() == _counted(repository, None)
    repository.jobs.advance("job-3", CancelRequested(), 2.0)
    assert repository.jobs.count_by_state() == _counted(repository, None)
