"""Answers to deadlines: what is promised, what is declined, and that a promise comes before what was not promised."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, NOW, a_job, a_snapshot, a_spec, law, samples

from optimus_scheduler.ahead.deadlines import Answer, answer_to, surely_within
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import ConvergenceRule, Interval, Job, Node, Resources
from optimus_scheduler.round import plan

GIB = 2**30


@st.composite
def intervals(draw: st.DrawFn) -> Interval:
    low = draw(st.floats(0.0, 1e6))
    middle = low + draw(st.floats(0.0, 1e6))
    return Interval(middle, low, middle + draw(st.floats(0.0, 1e6)))


@hypothesis_settings(max_examples=100, deadline=None)
@given(left=intervals(), due=st.floats(-1e4, 3e6), later=st.floats(0.0, 1e6))
def test_a_later_deadline_is_never_answered_worse(left: Interval, due: float, later: float) -> None:
    order = [Answer.DECLINED, Answer.OPEN, Answer.PROMISED]
    first, second = (answer_to(NOW + each, left, NOW) for each in (due, due + later))
    assert order.index(first.answer) <= order.index(second.answer)


@hypothesis_settings(max_examples=100, deadline=None)
@given(left=intervals(), due=st.floats(0.0, 3e6))
def test_the_earliest_deadline_is_one_that_is_promised(left: Interval, due: float) -> None:
    earliest = answer_to(NOW + due, left, NOW).earliest
    assert earliest is not None
    assert answer_to(earliest, left, NOW).answer is Answer.PROMISED
    assert surely_within(left) >= left.high * (1.0 - 1e-12), "95 % are more than 90 %"


def test_of_an_unknown_end_nothing_is_promised() -> None:
    assert answer_to(NOW + 60.0, None, NOW).answer is Answer.OPEN
    assert answer_to(NOW - 1.0, None, NOW).answer is Answer.DECLINED, "it has passed"


def test_a_deadline_that_nobody_could_give_is_not_named() -> None:
    assert answer_to(NOW + 60.0, Interval(1e6, 1e5, 1e12), NOW).earliest is None
    assert answer_to(NOW + 60.0, Interval(1e6, 1e5, float("inf")), NOW).answer is Answer.DECLINED


# --- precedence ------------------------------------------------------------------------------------------------------


def due_in(name: str, seconds: float, promised_at: float | None = None) -> Job:
    """Needs four workers and four servers to be in time; half the cluster below."""
    spec = replace(a_spec(rule=ConvergenceRule(max_steps=10_000), maximum=(4, 4), minimum=(4, 4)), deadline_at=seconds)
    return replace(a_job(name, spec=spec, measured=samples(law(), ALL_SIZES)), promised_at=promised_at)


def runs(*jobs: Job) -> set[str]:
    """Of these jobs, those that get tasks where there is room for one."""
    need = jobs[0].spec.worker.resources.cpu * 4 + jobs[0].spec.server.resources.cpu * 4
    node = Node("node-0", Resources(need, 512 * GIB))
    decisions = plan(a_snapshot(jobs, nodes=(node,)), policy_named("optimus")).decisions
    return {each.job_id for each in decisions if not each.allocation.is_empty}


YOUNG, PAUSED = {"young"}, {"due"}


def _due(name: str, left: float, *, steps: int | None = 1000, ran: float | None = None, deadline: bool = True) -> Job:
    """One that fills the cluster of `runs`; at its size it makes two steps a second, or nothing is known of it."""
    rule = ConvergenceRule() if steps is None else ConvergenceRule(max_steps=steps)
    spec = a_spec(rule=rule, maximum=(4, 4), minimum=(4, 4))
    spec = replace(spec, deadline_at=NOW + left) if deadline else spec
    measured = () if steps is None else samples(lambda _w, _p: 2.0, ALL_SIZES)
    has = (0, 0) if ran is None else (4, 4)
    allocated_at = None if ran is None else NOW - ran
    job = a_job(name, has=has, spec=spec, measured=measured, allocated_at=allocated_at, started_at=allocated_at)
    return replace(job, submitted_at=NOW - (ran or 1.0))


@pytest.mark.parametrize(
    ("left", "ran", "steps", "expected"),
    [
        (3600.0, 2.0, 1000, YOUNG),  # 500 s are needed
        (3600.0, 200.0, 1000, YOUNG),
        (3600.0, 400.0, 1000, PAUSED),  # it has had its time
        (700.0, 2.0, 1000, YOUNG),  # it can wait for a while
        (640.0, 2.0, 1000, PAUSED),  # there is no time to wait
        (3600.0, 2.0, None, YOUNG),  # nothing is known of it
        (900.0, 2.0, None, YOUNG),
        (760.0, 2.0, None, PAUSED),
    ],
)
def test_a_job_that_has_just_got_its_tasks_is_not_paused_for_a_deadline_that_leaves_time(
    left: float, ran: float, steps: int | None, expected: set[str]
) -> None:
    young, due = _due("young", 0.0, ran=ran, deadline=False, steps=100_000), _due("due", left, steps=steps)
    assert runs(young, due) == expected


def test_a_deadline_that_waits_for_a_job_that_has_just_got_its_tasks_says_so() -> None:
    jobs = _due("young", 0.0, ran=2.0, deadline=False, steps=100_000), _due("due", 3600.0)
    node = Node("node-0", Resources(8.0, 512 * GIB))
    told = {each.job_id: each.message for each in plan(a_snapshot(jobs, (node,)), policy_named("optimus")).decisions}
    assert "jobs that have just got their tasks" in told["due"]


def test_the_earlier_deadline_comes_first() -> None:
    assert runs(due_in("sooner", NOW + 90_000.0), due_in("later", NOW + 100_000.0)) == {"sooner"}


def test_a_promised_deadline_comes_before_an_earlier_one_that_is_not() -> None:
    """5,103 s are needed: there is time for one of both."""
    assert runs(due_in("sooner", NOW + 8000.0), due_in("later", NOW + 9000.0)) == {"sooner"}
    assert runs(due_in("sooner", NOW + 8000.0), due_in("later", NOW + 9000.0, NOW)) == {"later"}


def test_a_promised_deadline_waits_as_long_as_it_can_be_met_after_the_other() -> None:
    assert runs(due_in("sooner", NOW + 90_000.0), due_in("later", NOW + 100_000.0, NOW)) == {"sooner"}


def test_a_promise_is_not_broken_by_a_later_one() -> None:
    first, second = due_in("first", NOW + 9000.0, NOW - 60.0), due_in("second", NOW + 8000.0, NOW)
    assert runs(first, second) == {"first"}
    assert runs(due_in("first", NOW + 8000.0, NOW - 60.0), due_in("second", NOW + 9000.0, NOW)) == {"first"}


def test_a_deadline_that_is_missed_anyway_does_not_make_another_one_late() -> None:
    late, other = due_in("late", NOW + 5000.0), due_in("other", NOW + 90_000.0)  # 5,103 s are needed
    assert runs(late, other) == {"other"}
    assert runs(late) == {"late"}, "alone it is hurried"
