"""Events, rounds, decisions, retention."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.service.store.store_builders import (
    MakeJob,
    a_decision,
    a_forecast,
    a_membership,
    a_round,
    a_sample,
    add_samples,
    samples_of,
)

from optimus_scheduler.lifecycle import CancelRequested, ResumeRequested
from optimus_scheduler.model import Allocation
from optimus_service.store.records import Pruned, PrunedRounds
from optimus_service.store.repository import Repository


def test_events_of_a_job_and_of_all(repository: Repository, make_job: MakeJob) -> None:
    make_job("job-1")
    make_job("job-2")
    repository.events.add("job-1", "TaskExited", "A worker ended.", {"exit_code": 137}, 2.0)
    repository.events.add(None, "NodeLost", "A node is gone.", {}, 3.0)
    newest = repository.events.page("job-1").items[0]
    assert (newest.job_id, newest.type, newest.data, newest.at) == ("job-1", "TaskExited", {"exit_code": 137}, 2.0)
    assert [event.type for event in repository.events.page().items] == [
        "NodeLost",
        "TaskExited",
        "JobSubmitted",
        "JobSubmitted",
    ]
    assert repository.events.page("ghost").items == ()


def test_events_are_read_in_pages(repository: Repository) -> None:
    for number in range(5):
        repository.events.add(None, "Something", str(number), {}, float(number))
    first = repository.events.page(limit=3)
    rest = repository.events.page(cursor=first.next_cursor, limit=3)
    assert [event.message for event in (*first.items, *rest.items)] == ["4", "3", "2", "1", "0"]
    assert rest.next_cursor is None


def test_a_round_comes_back_with_its_decisions(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    decision = a_decision(
        allocation=Allocation(2, 1, "v100"),
        previous=Allocation(1, 1),
        gain=0.5,
        next_gain=math.inf,
        forecast=a_forecast(remaining_steps={"mean": 10.0}, steps_per_second=math.inf, cost={"mean": math.inf}),
    )
    number = repository.rounds.add(a_round(error="late"), [decision])
    assert repository.rounds.page().items == (replace(a_round(error="late"), id=number),)
    (stored,) = repository.rounds.decisions("job-1").items
    assert stored == replace(decision, id=stored.id, round_id=number)
    assert repository.rounds.latest_decisions(["job-1"]).get("job-1") == stored


def test_a_gain_that_is_no_number_is_none(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    repository.rounds.add(a_round(), [a_decision(gain=math.nan, next_gain=math.nan)])
    latest = repository.rounds.latest_decisions(["job-1"]).get("job-1")
    assert latest is not None
    assert (latest.gain, latest.next_gain) == (None, None)


def test_the_latest_decision_of_each_job(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2", "job-3"):
        make_job(job_id)
    repository.rounds.add(a_round(), [a_decision("job-1"), a_decision("job-2")])
    repository.rounds.add(a_round(at=2.0), [a_decision("job-1", reason="Unchanged")])
    latest = repository.rounds.latest_decisions(["job-1", "job-2", "job-3", "ghost"])
    assert {job_id: decision.reason for job_id, decision in latest.items()} == {
        "job-1": "Unchanged",
        "job-2": "GrantedMore",
    }
    assert repository.rounds.latest_decisions([]) == {}
    assert repository.rounds.latest_decisions(["job-3"]).get("job-3") is None


def test_the_sizes_that_decisions_gave_a_job(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("job-1", "job-2"):
        make_job(job_id)
    one, two = Allocation(1, 1), Allocation(2, 1)
    kept = a_decision(at=2.0, previous=one)
    grown = a_decision(at=3.0, previous=one, allocation=two), a_decision("job-2", at=3.0)
    repository.rounds.add(a_round(), [a_decision(at=1.0)])
    repository.rounds.add(a_round(at=2.0), [kept])
    repository.rounds.add(a_round(at=3.0), grown)
    assert repository.rounds.sizes_given("job-1") == [(1.0, one), (3.0, two)]
    assert repository.rounds.sizes_given("ghost") == []


@pytest.mark.parametrize("limit", [1, 2, 10])
def test_rounds_and_decisions_are_read_in_pages(repository: Repository, make_job: MakeJob, limit: int) -> None:
    make_job()
    numbers = [repository.rounds.add(a_round(at=float(at)), [a_decision(at=float(at))]) for at in range(4)]
    rounds: list[int] = []
    decisions: list[int] = []
    round_cursor = decision_cursor = None
    for _ in range(4):
        round_page = repository.rounds.page(round_cursor, limit)
        decision_page = repository.rounds.decisions("job-1", decision_cursor, limit)
        rounds += [record.id for record in round_page.items]
        decisions += [record.round_id for record in decision_page.items]
        round_cursor, decision_cursor = round_page.next_cursor, decision_page.next_cursor
        if round_cursor is None:
            break
    assert round_cursor is None
    assert decision_cursor is None
    assert rounds == decisions == numbers[::-1]


# --- retention -------------------------------------------------------------------------------------------------------


def _history_of(repository: Repository, job_id: str, at: float) -> None:
    repository.memberships.report(job_id, a_membership(job_id))
    add_samples(repository, job_id, [a_sample(sequence=number) for number in range(3)], at)
    repository.rounds.add(a_round(at=at), [a_decision(job_id, at=at)])


def test_only_what_ended_long_ago_is_pruned(repository: Repository, make_job: MakeJob) -> None:
    for job_id in ("ended", "recent", "active"):
        make_job(job_id)
        _history_of(repository, job_id, at=1.0)
    repository.jobs.advance("ended", CancelRequested(), 10.0)
    repository.jobs.advance("recent", CancelRequested(), 90.0)
    assert repository.retention.prune(now=100.0, keep_seconds=50.0) == Pruned(samples=2, decisions=1, jobs=1)
    assert repository.retention.prune(now=100.0, keep_seconds=50.0).total == 0
    left = {job_id: len(samples_of(repository, job_id)) for job_id in ("ended", "recent", "active")}
    assert left == {"ended": 0, "recent": 3, "active": 3}
    assert repository.retention.prune_rounds(100.0, 50.0, 0.0) == PrunedRounds(1, None)
    assert len(repository.rounds.page().items) == 2
    assert repository.jobs.get("ended").rescales == 0
    assert len(repository.memberships.of_job("ended")) == 1
    assert repository.events.page("ended").items != ()


def test_pruning_is_bounded_and_ids_are_not_used_again(repository: Repository, make_job: MakeJob) -> None:
    make_job()
    for number in range(5):
        add_samples(repository, "job-1", [a_sample(sequence=number)], 1.0)
    last = samples_of(repository, "job-1")[-1].id
    repository.jobs.advance("job-1", CancelRequested(), 2.0)
    assert [repository.retention.prune(100.0, 0.0, limit=2).samples for _ in range(5)] == [2, 2, 2, 0, 0]
    add_samples(repository, "job-1", [a_sample(sequence=9)], 3.0)
    assert len(samples_of(repository, "job-1", after_id=last)) == 1


def test_a_resumed_job_is_pruned_again_after_its_second_end(repository: Repository, make_job: MakeJob) -> None:
    make_job("again")
    _history_of(repository, "again", at=1.0)
    repository.jobs.advance("again", CancelRequested(), 10.0)
    while repository.retention.prune(100.0, 50.0).total:
        pass
    repository.jobs.advance("again", ResumeRequested(), 110.0)
    add_samples(repository, "again", [a_sample(sequence=7)], 111.0)
    repository.jobs.advance("again", CancelRequested(), 120.0)
    assert repository.retention.prune(150.0, 50.0).total == 0
    assert repository.retention.prune(200.0, 50.0).samples > 0
    assert samples_of(repository, "again") == []


def test_rounds_are_pruned_page_by_page(repository: Repository, make_job: MakeJob) -> None:
    make_job("active")
    for number in range(7):
        decisions = [a_decision("active", at=float(number))] if number % 3 == 0 else []
        repository.rounds.add(a_round(at=float(number)), decisions)
    after, pages = 0.0, []
    while True:
        pruned = repository.retention.prune_rounds(100.0, 50.0, after, limit=3)
        pages.append(pruned.rounds)
        if pruned.next_after is None:
            break
        after = pruned.next_after
    assert sum(pages) == 4
    assert [record.at for record in repository.rounds.page().items] == [6.0, 3.0, 0.0]
