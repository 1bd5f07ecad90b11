"""Scripts that keep no checkpoint: a pause costs what they have trained, which is weighed against what it gains."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from optimus_scheduler.model import (
    Architecture,
    ConvergenceRule,
    EndedJob,
    Job,
    Node,
    Quota,
    Reason,
    Resources,
    SpeedSample,
)
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


@pytest.mark.parametrize("names", [("a-new", "z-has"), ("z-new", "a-has")])
def test_beside_work_that_is_kept_claims_are_met_by_precedence(names: tuple[str, str]) -> None:
    """All claims fit, but not beside a script that stays: who has tasks and was promised its deadline keeps them."""
    old = replace(job("old", 100.0, runs=True), unsaved_seconds=2e3)
    new = replace(due(300.0), id=names[0])
    has = job(names[1], 300.0, runs=True)
    has = replace(has, spec=replace(has.spec, deadline_at=NOW + 450.0), submitted_at=NOW - 60.0, promised_at=NOW - 50.0)
    nodes = (Node("node-0", Resources(4.0, 256 * GIB)),)
    for policy in ("optimus", "fifo"):
        decisions = plan(a_snapshot([old, new, has], nodes), policy_named(policy)).decisions
        assert {each.job_id for each in decisions if not each.allocation.is_empty} == {"old", names[1]}


def script(name: str, seconds: int, node: str | None = None, cores: float = 1.0, **fields: Any) -> Job:
    """A script of one worker that makes a step a second, on this node; without one it waits and tells nothing yet."""
    spec = a_spec(rule=ConvergenceRule(max_steps=seconds if node else None), minimum=(1, 0), maximum=(1, 0))
    worker = replace(spec.worker, resources=Resources(cores, GIB))
    spec = replace(spec, architecture=Architecture.SCRIPT, worker=worker, server=replace(spec.server, maximum=0))
    one = a_job(name, has=(1, 0) if node else (0, 0), nodes=node or "", spec=replace(spec, arguments=(str(seconds),)))
    if node is None:
        runs = [
            EndedJob(
                f"run-{n}", "t", "default", None, speed_samples=(SpeedSample(1, 0, 1.0, n_steps=20, at=NOW - 500),),
                architecture=Architecture.SCRIPT, global_batch_size=spec.global_batch_size, total_steps=n,
                arguments=(str(n),),
            )
            for n in (30, 40, 50, 60, 80, 100)
        ]  # fmt: skip
        return replace(one, similar=tuple(runs), **fields)
    return replace(one, speed_samples=(SpeedSample(1, 0, 1.0, n_steps=20, at=NOW - 5),) * 3, **fields)


def in_seconds(job: Job, seconds: float, project: str = "default") -> Job:
    """The same with a deadline."""
    return replace(job, spec=replace(job.spec, deadline_at=NOW + seconds, project=project))


TWO_NODES = tuple(Node(f"node-{number}", Resources(2.0, 64 * GIB)) for number in (0, 1))


def test_two_deadlines_without_a_place_pause_nobody() -> None:
    """A core is free on each node, and each of two jobs needs both cores of one."""
    trained: dict[str, Any] = {"unsaved_seconds": 23.0, "step": 23, "started_at": NOW - 23, "allocated_at": NOW - 23}
    most = script("most", 59, "node-0", **trained | {"unsaved_seconds": 2000.0})
    other, fixed = script("other", 60, "node-0", **trained), script("fixed", 47, "node-1", **trained)
    fixed = replace(fixed, spec=replace(fixed.spec, project="text"))
    first, second = (
        in_seconds(script(name, 60, cores=2.0), left) for name, left in (("first", 70.0), ("second", 62.0))
    )
    snapshot = a_snapshot([most, other, fixed, first, second, script("small", 30)], TWO_NODES)
    quotas = (Quota("text", cpu=2.0, may_borrow=False), Quota("vision", share=0.25))
    decisions = {
        each.job_id: each for each in plan(replace(snapshot, quotas=quotas), policy_named("optimus")).decisions
    }
    assert {each for each, one in decisions.items() if not one.allocation.is_empty} == {
        "most",
        "other",
        "fixed",
        "small",
    }
    assert {decisions[each].reason for each in ("first", "second")} == {Reason.NO_FEASIBLE_NODE}


def test_a_job_that_is_known_by_ended_ones_does_not_have_to_begin_before_a_promised_one() -> None:
    """It takes 40 s, as jobs like it did, and not the ten minutes of one of which nothing is known."""
    trained: dict[str, Any] = {"unsaved_seconds": 4.0, "step": 3, "started_at": NOW - 4, "allocated_at": NOW - 4}
    promised = replace(in_seconds(script("promised", 60, "node-0", cores=2.0, **trained), 147.0), promised_at=NOW - 50)
    new = in_seconds(script("new", 40, cores=2.0), 48.0)
    ends = in_seconds(script("ends", 28, "node-1", **trained | {"unsaved_seconds": 20.0, "step": 20}), 186.0)
    small = script("small", 30, "node-1", **trained)
    decisions = plan(a_snapshot([promised, new, ends, small], TWO_NODES), policy_named("optimus")).decisions
    held = sorted(each.job_id for each in decisions if not each.allocation.is_empty)
    assert held == ["ends", "promised", "small"]


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
        table = candidates(outlooks, frontiers, sizes_of(outlooks, settings), settings, NOW)
        nothing.append(float(table.worth[0]))
        kept.append(float(table.worth[1]))
    assert nothing[1] <= nothing[0] <= 0.0
    assert kept[0] == kept[1]


def test_one_that_waits_for_long_does_not_undo_what_is_nearly_done() -> None:
    waiting = replace(job("waiting", 5000.0), submitted_at=NOW - 1e6)
    old = job("old", 100.0, runs=True)
    assert holder([old, waiting]) == ["waiting"], "nobody starves"
    assert holder([replace(old, unsaved_seconds=9000.0), waiting]) == ["old"]
