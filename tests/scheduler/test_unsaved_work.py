"""Scripts that keep no checkpoint: a pause costs what they have trained, which is weighed against what it gains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_job, a_snapshot, a_spec, law, samples

from optimus_scheduler.allocate.optimus.candidates import candidates, sizes_of
from optimus_scheduler.allocate.optimus.frontier import Frontiers
from optimus_scheduler.allocate.optimus.job_columns import JobColumns
from optimus_scheduler.allocate.policies import POLICIES, policy_named
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.model import ConvergenceRule, EndedJob, Job, Node, Resources
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

LAW = law()
SPEED = LAW(1, 1)
ROOM_FOR_ONE = (Node("node-0", Resources(2.0, 256 * GIB)),)


def job(name: str, seconds: float, *, runs: bool = False, priority: float = 1.0) -> Job:
    """One that takes so many seconds more."""
    rule = ConvergenceRule(max_steps=max(1, round(seconds * SPEED)))
    spec = a_spec(rule=rule, minimum=(1, 1), maximum=(1, 1), priority=priority)
    has = (1, 1) if runs else (0, 0)
    # The present size has been there for long: nothing but the lost work speaks for it.
    return a_job(
        name, has=has, spec=spec, measured=samples(LAW, ALL_SIZES), allocated_at=NOW - 50_000 if runs else None
    )


def due(seconds: float, priority: float = 1.0) -> Job:
    """A new job that has to begin now."""
    new = job("new", seconds, priority=priority)
    return replace(new, spec=replace(new.spec, deadline_at=NOW + 1.2 * seconds), submitted_at=NOW)


def holder(jobs: list[Job], policy: str = "optimus") -> list[str]:
    decisions = plan(a_snapshot(jobs, ROOM_FOR_ONE), policy_named(policy)).decisions
    return [each.job_id for each in decisions if not each.allocation.is_empty]


@pytest.mark.parametrize("policy", sorted(POLICIES.keys() - {"edf", "elasticflow"}))
def test_a_deadline_preempts_a_script_only_where_that_loses_less_than_it_gains(policy: str) -> None:
    old = job("old", 100.0, runs=True)
    assert holder([old, due(5000.0)], policy) == ["new"], "what it has made is kept"
    nearly_done = replace(old, unsaved_seconds=9000.0)
    assert holder([nearly_done, due(5000.0)], policy) == ["old"]
    just_begun = replace(job("old", 9000.0, runs=True), unsaved_seconds=100.0)
    assert holder([just_begun, due(5000.0)], policy) == ["new"]


def test_a_deadline_that_can_wait_for_the_end_of_a_script_does() -> None:
    old = replace(job("old", 200.0, runs=True), unsaved_seconds=75.0)
    new = job("new", 1000.0)
    assert holder([old, replace(new, spec=replace(new.spec, deadline_at=NOW + 3600.0))]) == ["old"]
    assert holder([old, replace(new, spec=replace(new.spec, deadline_at=NOW + 1300.0))]) == ["new"]


def test_a_deadline_that_can_wait_for_the_end_of_another_job_pauses_no_script() -> None:
    old = replace(job("old", 2000.0, runs=True), unsaved_seconds=500.0)
    nodes = (Node("node-0", Resources(4.0, 256 * GIB)),)

    def holders(ends_in: float, new: Job) -> list[str]:
        other = replace(job("other", ends_in, runs=True), unsaved_seconds=400.0)
        decisions = plan(a_snapshot([old, other, new], nodes), policy_named("optimus")).decisions
        return sorted(each.job_id for each in decisions if not each.allocation.is_empty)

    new = job("new", 1000.0)
    soon = replace(new, spec=replace(new.spec, deadline_at=NOW + 1600.0))
    assert holders(200.0, soon) == ["old", "other"], "what the other frees is soon enough"
    assert "new" in holders(1900.0, soon)


def test_a_deadline_of_a_job_that_is_known_by_ended_ones_alone_can_wait_too() -> None:
    """It claims its minimum, as it has to run to be known, but not at any price."""
    old = replace(job("old", 2000.0, runs=True), unsaved_seconds=1500.0)
    other = replace(job("other", 100.0, runs=True), unsaved_seconds=40.0)
    nodes = (Node("node-0", Resources(4.0, 256 * GIB)),)
    spec = a_spec(rule=ConvergenceRule(loss_decrease=0.01), minimum=(1, 1), maximum=(1, 1))
    ended = EndedJob(
        "ended", "t", "default", 10.0, (10.0, 400.0), (2.0, 1.0), speed_samples=samples(LAW, ALL_SIZES), total_steps=400
    )
    new = a_job("new", spec=spec, similar=(ended, replace(ended, id="too")), steps_per_epoch=10.0)
    takes = 400.0 / SPEED
    for left, holding in ((takes + 200.0, ["old", "other"]), (takes + 60.0, ["new", "old"])):
        due_job = replace(new, spec=replace(spec, deadline_at=NOW + left))
        # A policy that pauses nobody by itself.
        decisions = plan(a_snapshot([old, other, due_job], nodes), policy_named("fifo")).decisions
        assert sorted(each.job_id for each in decisions if not each.allocation.is_empty) == holding


def test_what_one_script_keeps_is_not_taken_from_another_that_loses_more_too() -> None:
    """Beside the claim there is room for the small one, whose pause would lose most; then for the wide one alone."""
    wide, small = (
        replace(job(name, 100.0, runs=True), unsaved_seconds=made) for name, made in (("wide", 2e3), ("small", 3e3))
    )
    wide = replace(wide, spec=replace(wide.spec, worker=replace(wide.spec.worker, resources=Resources(3.0, GIB))))
    nodes = (Node("node-0", Resources(6.0, 256 * GIB)),)
    decisions = plan(a_snapshot([wide, small, due(5000.0)], nodes), policy_named("optimus")).decisions
    assert {each.job_id for each in decisions if not each.allocation.is_empty} == {"wide", "small"}


@pytest.mark.parametrize("policy", ["edf", "elasticflow"])
def test_policies_of_deadlines_alone_do_not_count_what_is_lost(policy: str) -> None:
    old = replace(job("old", 100.0, runs=True), unsaved_seconds=9000.0)
    assert holder([old, due(5000.0)], policy) == ["new"]


@hypothesis_settings(max_examples=60, deadline=None)
@given(
    made=st.floats(0.0, 20_000.0),
    left=st.floats(10.0, 20_000.0),
    priority=st.floats(0.25, 4.0),
)
def test_the_claim_yields_exactly_where_more_is_lost_than_waited_for(made: float, left: float, priority: float) -> None:
    old = replace(job("old", left, runs=True), unsaved_seconds=made)
    gained = forecast(old, NOW, Settings()).remaining_seconds(old.allocation) * priority
    if abs(made - gained) < 0.1 * gained + 1.0:
        return  # about the same: either will do
    assert holder([old, due(5000.0, priority)]) == (["old"] if made > gained else ["new"])


@hypothesis_settings(max_examples=60, deadline=None)
@given(made=st.lists(st.floats(0.0, 1e6), min_size=2, max_size=2).map(sorted), left=st.floats(10.0, 20_000.0))
def test_the_more_a_pause_loses_the_less_it_is_worth(made: list[float], left: float) -> None:
    old, settings = job("old", left, runs=True), Settings()
    nothing, kept = [], []
    for seconds in made:
        outlooks = JobColumns.of([forecast(replace(old, unsaved_seconds=seconds), NOW, settings)])
        frontiers = Frontiers(outlooks, Resources(2.0, 256 * GIB))
        table = candidates(outlooks, frontiers, sizes_of(outlooks, settings), settings)
        nothing.append(float(table.worth[0]))
        kept.append(float(table.worth[1]))
    assert nothing[1] <= nothing[0] <= 0.0
    assert kept[0] == kept[1]


def test_one_that_waits_for_long_does_not_undo_what_is_nearly_done() -> None:
    waiting = replace(job("waiting", 5000.0), submitted_at=NOW - 1e6)
    old = job("old", 100.0, runs=True)
    assert holder([old, waiting]) == ["waiting"], "nobody starves"
    assert holder([replace(old, unsaved_seconds=9000.0), waiting]) == ["old"]
