"""Waits before retries, and what a round does with jobs that wait."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.builders import NOW, a_cluster, a_job, a_snapshot

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import JobState, Reason
from optimus_scheduler.retries import MAX_RETRIES, Backoff, Retry
from optimus_scheduler.round import plan

backoffs = st.builds(
    Backoff,
    first_seconds=st.floats(0, 600),
    factor=st.floats(1, 1000),
    longest_seconds=st.floats(600, 1e6),
)


@given(backoffs, st.integers(1, 10**9))
def test_waits_grow_up_to_their_bound(backoff: Backoff, number: int) -> None:
    wait, next_wait = backoff.seconds(number), backoff.seconds(number + 1)
    assert backoff.first_seconds <= wait <= next_wait <= backoff.longest_seconds


def test_two_waits_outlast_a_fault_of_five_minutes() -> None:
    assert [Backoff().seconds(number) for number in (1, 2, 3, MAX_RETRIES)] == [30.0, 300.0, 600.0, 600.0]


@given(st.floats(0, 600), st.floats(-1e6, 1e6))
def test_a_wait_is_over_at_its_end_and_when_the_clock_was_set_back(seconds: float, now: float) -> None:
    retry = Retry(1, 2, at=1000.0, seconds=seconds, error="OSError")
    assert retry.is_due(now) is not (0.0 < 1000.0 - now <= seconds)


def test_a_round_gives_a_waiting_job_nothing_and_others_its_room() -> None:
    retry = Retry(1, 2, at=NOW + 60.0, seconds=60.0, error="OSError: no such device")
    waiting = replace(a_job("waits"), state=JobState.PAUSED, step=100, retry=retry)
    snapshot = a_snapshot([waiting, a_job("other")], a_cluster(2.0))
    decisions = {each.job_id: each for each in plan(snapshot, policy_named("optimus")).decisions}
    assert decisions["waits"].reason is Reason.WAITING_FOR_RETRY
    assert decisions["waits"].message == "Waits 60 s after an error (retry 1 of 2): OSError: no such device"
    assert decisions["waits"].allocation.is_empty
    assert not decisions["other"].allocation.is_empty
    later = replace(snapshot, now=NOW + 60.0, jobs=(waiting,))
    assert not plan(later, policy_named("optimus")).decisions[0].allocation.is_empty
