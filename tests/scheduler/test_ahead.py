"""The queue simulated forward: when jobs start and end."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_cluster, a_job, a_snapshot, a_spec, law, samples

from optimus_models.calibration import Errors, Experience, Judged
from optimus_scheduler.ahead.arrivals import RecentJobs
from optimus_scheduler.ahead.corrected_times import corrected_times
from optimus_scheduler.ahead.cuts import LESS, SOONER, TURN, Cut, agreed_cut, freed_by
from optimus_scheduler.ahead.doubts import Doubts
from optimus_scheduler.ahead.earliest_starts import DRAWS, Needed, earliest_starts
from optimus_scheduler.ahead.look_ahead import look_ahead
from optimus_scheduler.ahead.progress import Progress
from optimus_scheduler.ahead.queue import (
    Arrival,
    ExpectedCut,
    ExpectedTimes,
    Hindrances,
    Queue,
    Work,
    as_fresh,
    rest_of_life,
)
from optimus_scheduler.ahead.start_ups import start_up_seconds
from optimus_scheduler.ahead.trajectory import Rules, Trajectory
from optimus_scheduler.allocate.allocate import allocate
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.time_left import LIMIT_ENDS_SECONDS
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Architecture,
    ConvergenceRule,
    Directive,
    EndedJob,
    Interval,
    Job,
    JobState,
    Node,
    Quota,
    Resources,
    Snapshot,
    SpeedSample,
    WorkerLimit,
    total_of,
)
from optimus_scheduler.place.place import Placer
from optimus_scheduler.place.requests import TaskSlot
from optimus_scheduler.retries import Retry
from optimus_scheduler.round import plan
from optimus_scheduler.settings import Settings

OPTIMUS = policy_named("optimus")
POLICIES = ("optimus", "optimus-paper", "fifo", "tiresias", "drf", "srtf")


def running(name: str, steps: int, size: tuple[int, int] = (1, 1), most: int = 4, step: int = 0) -> Job:
    """A job whose speeds are measured, with so many steps in all."""
    spec = a_spec(maximum=(most, most), rule=ConvergenceRule(max_steps=steps))
    return a_job(name, has=size, spec=spec, measured=samples(law(), ALL_SIZES), step=step)


def a_queue(*jobs: Job, cpu: float = 16.0, arrivals: tuple[Arrival, ...] = ()) -> Queue:
    outlooks = forecast_all(jobs, NOW, Settings())
    sizes = {job.id: job.allocation for job in jobs}
    return Queue(NOW, a_cluster(cpu), outlooks, sizes, (), arrivals)


def looked(queue: Queue, policy: str = "optimus") -> dict[str, ExpectedTimes]:
    return look_ahead(queue, policy_named(policy), Settings())


def end_of(queue: Queue, name: str) -> Interval:
    end = looked(queue)[name].end
    assert end is not None
    return end


jobs_drawn = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 2), st.integers(1, 6)).map(
        lambda drawn: (drawn[0], (drawn[1], drawn[1]), drawn[2])
    ),
    min_size=1,
    max_size=6,
)


def drawn_queue(drawn: list[tuple[int, tuple[int, int], int]]) -> Queue:
    jobs = [running(f"j{i}", steps, size, max(most, *size)) for i, (steps, size, most) in enumerate(drawn)]
    return a_queue(*jobs, cpu=24.0)


@settings(max_examples=25)
@given(drawn=jobs_drawn, policy=st.sampled_from(POLICIES))
def test_percentiles_are_in_order_and_no_job_ends_before_it_starts(
    drawn: list[tuple[int, tuple[int, int], int]], policy: str
) -> None:
    queue = drawn_queue(drawn)
    found = looked(queue, policy)
    assert set(found) == {one.id for one in queue.outlooks}
    for ahead in found.values():
        assert ahead.end is not None
        assert NOW <= ahead.end.low <= ahead.end.mean <= ahead.end.high
        if ahead.start is not None:
            assert NOW <= ahead.start.low <= ahead.start.mean <= ahead.start.high
            for start, end in zip(
                (ahead.start.low, ahead.start.mean, ahead.start.high),
                (ahead.end.low, ahead.end.mean, ahead.end.high),
                strict=True,
            ):
                assert start <= end


@settings(max_examples=15)
@given(drawn=jobs_drawn)
def test_the_same_queue_has_the_same_future_in_any_order(drawn: list[tuple[int, tuple[int, int], int]]) -> None:
    queue = drawn_queue(drawn)
    assert looked(queue) == looked(replace(queue, outlooks=tuple(reversed(queue.outlooks))))


@settings(max_examples=25)
@given(drawn=jobs_drawn, policy=st.sampled_from(POLICIES))
def test_no_instant_holds_more_than_the_cluster_has(drawn: list[tuple[int, tuple[int, int], int]], policy: str) -> None:
    queue = drawn_queue(drawn)
    newcomer = as_fresh(queue.outlooks[0], "newcomer", NOW + 30.0)
    queue = replace(queue, arrivals=(Arrival(NOW + 30.0, newcomer, 300.0),))
    trajectory = Trajectory(queue, [500.0] * len(queue.outlooks), Rules(policy_named(policy), Settings(), 24, 0, 24))
    trajectory.run()
    capacity = total_of(node.capacity for node in queue.nodes)
    for sizes in trajectory.sizes:
        jobs = [*queue.outlooks, newcomer]
        held = total_of(one.demand(size) for one, size in zip(jobs, sizes, strict=False))
        assert held.fits_in(capacity)


@pytest.mark.parametrize(("silent", "report", "sooner"), [(20.0, 30.0, 20.0), (50.0, 30.0, 30.0), (50.0, 0.0, 0.0)])
def test_a_job_that_tells_some_of_its_steps_makes_others_between(silent: float, report: float, sooner: float) -> None:
    job = running("j", 5000, (1, 1), 1)
    told = end_of(a_queue(job), "j")
    between = end_of(a_queue(replace(job, silent_since=NOW - silent, report_seconds=report)), "j")
    assert told.mean - between.mean == pytest.approx(sooner, rel=0.02, abs=0.01)


@pytest.mark.parametrize("gone", [1.0, 15.0, 29.0, 31.0, 45.0, 59.0, 61.0, 75.0, 85.0])
def test_what_is_left_of_a_script_that_tells_its_epochs_alone_goes_down_with_the_clock(gone: float) -> None:
    """Three of 30 s each. Before the first one, too, and in the last one."""
    spec = a_spec(maximum=(1, 1), rule=ConvergenceRule(max_steps=3))
    paces = (SpeedSample(1, 1, 1 / 30.0, 10, NOW - 1e4),)
    step = int(gone // 30.0)
    job = a_job("j", has=(1, 1), spec=spec, measured=paces, step=step, started_at=NOW - gone)
    told = end_of(a_queue(replace(job, silent_since=NOW - gone + 30.0 * step, report_seconds=30.0)), "j").mean
    assert told - NOW == pytest.approx(90.0 - gone, rel=0.05)


@given(left=st.integers(20, 20_000), size=st.integers(1, 3), busy_part=st.floats(0.4, 1.0))
@settings(max_examples=25)
def test_a_job_alone_at_its_only_size_ends_when_its_work_is_done_and_its_evaluations_are(
    left: int, size: int, busy_part: float
) -> None:
    spec = a_spec(minimum=(size, size), maximum=(size, size), rule=ConvergenceRule(max_steps=left + 100))
    job = a_job("a", has=(size, size), spec=spec, measured=samples(law(), ALL_SIZES), step=100, busy_part=busy_part)
    queue = a_queue(job)
    speed, told = queue.outlooks[0].speeds.at(Allocation(size, size)), queue.outlooks[0].forecast.remaining_seconds
    end = end_of(queue, "a").mean
    assert end - NOW == pytest.approx(left / speed / busy_part, rel=1e-6)
    assert told is not None
    assert end - NOW == pytest.approx(told.mean, rel=1e-6), "the queue and the time at the present size agree"


@given(busy_part=st.floats(0.4, 1.0))
@settings(max_examples=10)
def test_a_job_that_tells_neither_steps_nor_losses_ends_as_others_did_whatever_part_it_evaluates(
    busy_part: float,
) -> None:
    spec = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule())
    job = a_job("a", has=(1, 1), spec=spec, measured=samples(law(), ALL_SIZES), busy_part=busy_part)
    queue = replace(a_queue(job), lengths=[600.0] * 50)
    plain = replace(a_queue(replace(job, busy_part=1.0)), lengths=[600.0] * 50)
    assert end_of(queue, "a").mean == pytest.approx(end_of(plain, "a").mean, abs=1.0)


@given(steps=st.integers(20, 5000), more=st.integers(0, 5000))
@settings(max_examples=25)
def test_more_work_never_ends_sooner(steps: int, more: int) -> None:
    spec = a_spec(minimum=(2, 2), maximum=(2, 2))
    jobs = [
        a_job("a", has=(2, 2), spec=replace(spec, convergence=rule), measured=samples(law(), ALL_SIZES))
        for rule in (ConvergenceRule(max_steps=steps), ConvergenceRule(max_steps=steps + more))
    ]
    first, second = (end_of(a_queue(job), "a") for job in jobs)
    assert first.low <= second.low
    assert first.mean <= second.mean
    assert first.high <= second.high


def test_a_waiting_job_starts_when_the_running_one_ends() -> None:
    one_size = a_spec(minimum=(2, 2), maximum=(2, 2), rule=ConvergenceRule(max_steps=1000))
    first = a_job("a", has=(2, 2), spec=one_size, measured=samples(law(), ALL_SIZES))
    second = a_job("b", spec=one_size, measured=samples(law(), ALL_SIZES))
    found = look_ahead(a_queue(first, second, cpu=4.0), policy_named("fifo"), Settings())
    start, end = found["b"].start, found["a"].end
    assert start is not None
    assert end is not None
    assert start.mean == pytest.approx(end.mean, rel=0.0, abs=0.2 * (end.mean - NOW))


def was_told_wrongly(errors: list[float]) -> Experience:
    """What earlier jobs were told, with these errors as logarithms."""
    judged = Errors([Judged(f"ended-{number}", "", 0.1, 0.3, error) for number, error in enumerate(errors)])
    return Experience(time=judged, seconds=judged, start=judged)


@settings(max_examples=25)
@given(
    drawn=jobs_drawn,
    limit=st.floats(1.0, 300.0),
    size=st.integers(0, 1),
    ran=st.none() | st.floats(0.0, 600.0),
    policy=st.sampled_from(POLICIES),
    errors=st.lists(st.floats(-3.0, 3.0), max_size=3),
)
def test_a_limit_of_time_bounds_the_end(
    drawn: list[tuple[int, tuple[int, int], int]],
    limit: float,
    size: int,
    ran: float | None,
    policy: str,
    errors: list[float],
) -> None:
    """However wrong the ends were that were told of earlier jobs."""
    queue = drawn_queue(drawn)
    job = running("limited", 5000, (size, size))
    rule = ConvergenceRule(max_steps=5000, max_seconds=limit)
    started = NOW - ran if size and ran is not None else None
    left = limit if started is None else max(started + limit - NOW, 0.0)
    job = replace(job, started_at=started, experience=was_told_wrongly(errors))
    (limited,) = forecast_all([replace(job, spec=replace(job.spec, convergence=rule))], NOW, Settings())
    queue = replace(queue, outlooks=(*queue.outlooks, limited))
    for found in (
        looked(queue, policy)["limited"],
        corrected_times(queue, policy_named(policy), Settings())["limited"].shown,
    ):
        assert found.end is not None
        if found.start is None:
            assert found.end.high <= NOW + left + LIMIT_ENDS_SECONDS + 1e-6
        else:
            begins = limited.stop_seconds + LIMIT_ENDS_SECONDS  # where nobody knows how long first tasks take
            assert found.end.high <= found.start.high + limit + begins + 1e-6
            assert found.end.mean <= found.start.mean + limit + begins + 1e-6
    at_its_size = limited.forecast.remaining_seconds
    assert at_its_size is None or at_its_size.high <= left + LIMIT_ENDS_SECONDS + 1e-6


@pytest.mark.parametrize("has", [(1, 1), (4, 4)], ids=["may grow", "may shrink"])
def test_a_job_that_only_its_limit_of_time_ends_ends_then_whatever_its_size_becomes(has: tuple[int, int]) -> None:
    job = running("limited", 5000, has, most=4)
    rule = ConvergenceRule(max_seconds=100.0)
    job = replace(job, started_at=NOW - 40.0, spec=replace(job.spec, convergence=rule))
    found = looked(a_queue(job, running("waits", 5000, (0, 0), most=4), cpu=8.0))["limited"].end
    assert found is not None
    assert NOW + 60.0 <= found.low <= found.mean <= found.high <= NOW + 60.0 + LIMIT_ENDS_SECONDS
    (limited,) = forecast_all([job], NOW, Settings())
    total = limited.forecast.total_steps
    assert total is not None
    assert total.low < total.mean < total.high, "its steps are as doubtful as its speed"


def test_the_limit_of_time_of_a_job_runs_from_when_its_first_tasks_take_part() -> None:
    job = running("limited", 5000, (0, 0), most=1)
    job = replace(job, started_at=None, spec=replace(job.spec, convergence=ConvergenceRule(max_seconds=100.0)))
    (found,) = (looked(replace(a_queue(job), start_ups=SEEN))[each] for each in ("limited",))
    assert found.start is not None and found.end is not None  # noqa: PT018
    assert found.end.mean - found.start.mean == pytest.approx(100.0, abs=LIMIT_ENDS_SECONDS)


@pytest.mark.parametrize("quotas", [(), (Quota("other", share=0.1),)], ids=["no quota", "a quota somewhere"])
def test_a_job_that_waits_beyond_its_limit_of_time_starts_with_the_end_of_another(quotas: tuple[Quota, ...]) -> None:
    """Without tasks nothing ends it: it was told a start hundreds of times as far away, or none."""
    rule = ConvergenceRule(max_steps=5000, max_seconds=100.0)
    limited = of_slots("limited", 4, 5000, False)
    limited = replace(limited, state=JobState.PAUSED, started_at=NOW - 60.0, step=50)
    limited = replace(limited, spec=replace(limited.spec, convergence=rule))
    found = looked(replace(a_queue(of_slots("trains", 4, 120, True), limited, cpu=4.0), quotas=quotas))
    end, start, ends = found["trains"].end, found["limited"].start, found["limited"].end
    assert end is not None
    assert start is not None
    assert end.low - 30.0 <= start.low <= start.mean <= start.high <= end.high + 30.0
    assert start.mean == pytest.approx(end.mean, abs=30.0)
    assert ends is not None
    assert start.mean <= ends.mean <= start.mean + 30.0, "as soon as it goes on"


PRICED = Settings(price_per_core_hour=3600.0)
"""A job with one worker and one server of one core each spends 2 a second."""


@settings(max_examples=25)
@given(
    drawn=jobs_drawn,
    most=st.floats(1.0, 600.0),
    size=st.integers(0, 1),
    part=st.floats(0.0, 0.99),
    policy=st.sampled_from(POLICIES),
    errors=st.lists(st.floats(-3.0, 3.0), max_size=3),
)
def test_a_limit_of_money_bounds_the_end(
    drawn: list[tuple[int, tuple[int, int], int]],
    most: float,
    size: int,
    part: float,
    policy: str,
    errors: list[float],
) -> None:
    """However wrong the ends were that were told of earlier jobs."""
    queue = drawn_queue(drawn)
    job = running("limited", 5000, (size, size))
    rule = ConvergenceRule(max_steps=5000, max_cost=most)
    job = replace(job, spec=replace(job.spec, convergence=rule), experience=was_told_wrongly(errors), spent=part * most)
    (limited,) = forecast_all([job], NOW, PRICED)
    queue = replace(queue, outlooks=(*queue.outlooks, limited))
    left = (1.0 - part) * most / 2.0
    for found in (
        look_ahead(queue, policy_named(policy), PRICED)["limited"],
        corrected_times(queue, policy_named(policy), PRICED)["limited"].shown,
    ):
        assert found.end is not None
        begins = NOW if found.start is None else found.start.high + limited.stop_seconds
        is_paused = found.cut is not None and found.cut.pauses  # and spends nothing meanwhile
        assert is_paused or found.end.high <= begins + left + LIMIT_ENDS_SECONDS + 1e-6


@pytest.mark.parametrize(("has", "left"), [((0, 0), 30.0), ((1, 1), 30.0), ((2, 2), 29.0)])
def test_a_job_that_its_budget_ends_ends_when_that_is_spent(has: tuple[int, int], left: float) -> None:
    """With the size whose steps are cheapest, which is what it gets then."""
    job = running("limited", 5000, has, most=max(has[0], 1))
    rule = ConvergenceRule(max_steps=5000, max_cost=100.0)
    job = replace(job, spec=replace(job.spec, convergence=rule), spent=40.0)
    (limited,) = forecast_all([job], NOW, PRICED)
    assert limited.forecast.rule == "max_cost"
    queue = replace(a_queue(job), outlooks=(limited,))
    found = look_ahead(queue, OPTIMUS, PRICED)["limited"]
    assert found.end is not None
    start = Interval(NOW, NOW, NOW) if found.start is None else found.start
    stop = 0.0 if found.start is None else limited.stop_seconds
    assert found.end.low >= start.low + stop + left
    assert found.end.high <= start.high + stop + left + LIMIT_ENDS_SECONDS


def test_a_budget_that_pays_for_all_steps_ends_no_job() -> None:
    for has in ((0, 0), (1, 1)):
        job = running("rich", 100, has, most=1)
        ends = []
        for most in (None, 1e6):
            rule = ConvergenceRule(max_steps=100, max_cost=most)
            (one,) = forecast_all([replace(job, spec=replace(job.spec, convergence=rule))], NOW, PRICED)
            assert one.forecast.rule == "max_steps"
            queue = replace(a_queue(job), outlooks=(one,))
            ends.append(look_ahead(queue, OPTIMUS, PRICED)["rich"].end)
        assert ends[0] == ends[1]


@pytest.mark.parametrize("emptied", [False, True])
def test_tasks_on_a_cordoned_node_stay_and_those_on_an_emptied_one_do_not(emptied: bool) -> None:
    queue = a_queue(running("a", 1000, most=1), running("b", 2000, most=1))
    later = replace(queue, nodes=tuple(replace(each, schedulable=False, emptied=emptied) for each in queue.nodes))
    future = Trajectory(later, [1000.0, 2000.0], Rules(OPTIMUS, Settings(), 24, 0, 24))
    future.run()
    first = tuple(not size.is_empty for size in future.sizes[1])
    assert first == (not emptied,) * 2
    stay = [looked(each)["a"].end for each in (queue, later)]
    assert (stay[0] == stay[1]) != emptied, stay


def test_what_jobs_hold_on_a_cordoned_node_is_not_taken_from_the_open_ones() -> None:
    queue = a_queue(running("a", 100_000, (2, 2), most=2), running("b", 1000, (0, 0), most=1), cpu=4.0)
    (node,) = queue.nodes
    closed, opened = replace(node, schedulable=False), replace(node, name="open", capacity=Resources(2.0, 2**36))
    start = looked(replace(queue, nodes=(closed, opened)))["b"].start
    assert start is not None
    assert start.high <= NOW + 60.0, "there is room for it on the open node"
    full = looked(replace(queue, nodes=(closed,)))["b"]
    assert full.start is None or full.start.low > NOW + 60.0, "the end of the other job frees nothing that it may have"


def test_a_start_is_as_doubtful_as_the_end_that_it_waits_for() -> None:
    one_size = a_spec(minimum=(2, 2), maximum=(2, 2), rule=ConvergenceRule(max_steps=1000))
    first = a_job("a", has=(2, 2), spec=one_size, measured=samples(law(), ALL_SIZES))
    second = a_job("b", spec=one_size, measured=samples(law(), ALL_SIZES))
    found = look_ahead(a_queue(first, second, cpu=4.0), policy_named("fifo"), Settings())
    start, end = found["b"].start, found["a"].end
    assert start is not None
    assert end is not None
    relative = [(each.high - each.low) / (each.mean - NOW) for each in (start, end)]
    assert relative[0] == pytest.approx(relative[1], rel=0.3)


def test_a_start_that_waits_for_no_end_may_come_with_any_round() -> None:
    """Another job has to be made smaller first, and nobody knows which round does it."""
    queue = a_queue(running("a", 200_000, (4, 4), most=4), running("b", 1000, (0, 0)), cpu=8.0)
    start = looked(queue)["b"].start
    assert start is not None
    assert start.high - NOW > 2.0 * (start.mean - NOW) > 0.0
    assert start.low - NOW < 0.5 * (start.mean - NOW)


# --- room by all ends together ---------------------------------------------------------------------------------------

ONE = Resources(cpu=1.0)
ENDS = st.lists(st.lists(st.floats(0.0, 1e6), min_size=1, max_size=9), max_size=8)


def room(ends: list[list[float]], *needed: Resources, free: float = 0.0) -> NDArray[np.float64]:
    """(len(needed), DRAWS) with a job of one core for each of `ends`."""
    asked = [Needed(each, 1, Resources(), 0) for each in needed]
    held = [[("node-0", ONE)]] * len(ends)
    return earliest_starts(0.0, {"node-0": Resources(cpu=free)}, held, [np.array(each) for each in ends], asked).at


def test_of_many_doubtful_ends_the_first_comes_before_the_likeliest() -> None:
    levels = [10.0, 50.0, 100.0, 150.0, 190.0]
    first, second = np.median(room([levels] * 8, ONE, ONE), axis=1)
    assert first == 10.0
    assert first <= second < 100.0
    assert np.median(room([levels], ONE)) == 100.0


@given(ends=ENDS, free=st.integers(0, 3), needed=st.lists(st.integers(1, 3), min_size=1, max_size=4))
@settings(max_examples=50)
def test_room_comes_in_the_order_of_the_jobs_that_wait(ends: list[list[float]], free: int, needed: list[int]) -> None:
    found = room(ends, *(Resources(cpu=float(each)) for each in needed), free=float(free))
    assert found.shape == (len(needed), DRAWS)
    assert (found >= 0.0).all()
    fits, taken = [], 0  # what never fits takes nothing
    for each in needed:
        fits.append(taken + each <= free + len(ends))
        taken += each if fits[-1] else 0
    assert np.isinf(found).all(axis=1).tolist() == [not each for each in fits]
    assert (np.diff(found[fits], axis=0) >= 0.0).all()
    assert (found[np.cumsum(needed) <= free] == 0.0).all()


def test_room_of_another_type_is_no_room() -> None:
    free = {"node-0": Resources(cpu=8.0, gpus={"v100": 4})}
    asked = [Needed(Resources(cpu=1.0, gpus={gpu_type: 1}), 4, Resources(), 0) for gpu_type in ("a100", "v100")]
    found = earliest_starts(0.0, free, [], [], asked).at
    assert np.isinf(found[0]).all()
    assert (found[1] == 0.0).all()


def test_room_in_pieces_is_no_room_for_one_task() -> None:
    """Two nodes of two cores, one of each taken: the first end leaves two cores free, on two nodes or on one."""
    free = {"node-0": ONE, "node-1": Resources()}
    held = [[("node-0", ONE)], [("node-1", ONE)], [("node-1", ONE)]]
    ends = [np.array([at]) for at in (30.0, 10.0, 20.0)]
    wide, small = Needed(Resources(cpu=2.0), 1, Resources(), 0), Needed(ONE, 1, ONE, 1)
    assert earliest_starts(0.0, free, held, ends, [wide]).at[0, 0] == 20.0, "both cores of the second node"
    assert earliest_starts(0.0, free, held, ends, [small]).at[0, 0] == 10.0, "a core on each"
    after = earliest_starts(0.0, free, held, ends, [wide, small]).at[:, 0]
    assert after.tolist() == [20.0, 30.0], "what the first needs is kept for it"


def of_both(drawn: tuple[int, int]) -> Resources:
    """So many cores, and GPUs of a type."""
    return Resources(cpu=float(drawn[0]), gpus={"a100": drawn[1]} if drawn[1] else {})


SOME = st.tuples(st.integers(0, 3), st.integers(0, 1)).map(of_both)
NEEDS = st.tuples(st.integers(1, 6), st.integers(0, 2)).map(of_both)


@given(
    held=st.lists(st.lists(st.tuples(st.sampled_from(["n0", "n1", "n2"]), SOME), max_size=3), max_size=24),
    worker=NEEDS,
    server=NEEDS,
    counts=st.tuples(st.integers(1, 3), st.integers(0, 2)),
)
@example(  # the worker needs n1 and the server n0, until n0 has what the worker needs, too, and is the first to fit
    held=[
        [("n0", of_both((3, 0))), ("n1", of_both((1, 1))), ("n2", of_both((3, 0)))],
        *[[]] * 5,
        [("n0", of_both((1, 0))), ("n1", of_both((1, 0)))],
        [("n0", of_both((0, 1)))],
        *[[]] * 3,
        [("n1", of_both((9, 9)))],
    ],
    worker=of_both((2, 1)),
    server=of_both((4, 0)),
    counts=(1, 1),
)
@settings(max_examples=200)
def test_a_job_starts_with_the_first_end_after_which_there_are_nodes_for_its_tasks(
    held: list[list[tuple[str, Resources]]], worker: Resources, server: Resources, counts: tuple[int, int]
) -> None:
    """As if they were tried one by one: none is passed over, though they may fit no more after the next."""
    asked = [Needed(worker, counts[0], server, counts[1])]
    free = {node: Resources() for node in ("n0", "n1", "n2")}
    ends = [np.array([1.0 + each]) for each in range(len(held))]
    found = earliest_starts(0.0, free, held, ends, asked).at[0]
    first = math.inf
    for after in range(len(held) + 1):
        for node, amount in held[after - 1] if after else ():
            free[node] += amount
        if earliest_starts(0.0, free, [], [], asked).at[0, 0] == 0.0:
            first = float(after)
            break
    assert (found == first).all()


@settings(max_examples=15)
@given(drawn=jobs_drawn)
def test_an_owner_s_pause_has_no_end_and_an_unknown_length_neither(
    drawn: list[tuple[int, tuple[int, int], int]],
) -> None:
    queue = drawn_queue(drawn)
    first = queue.outlooks[0]
    paused = first._replace(job=replace(first.job, owner_paused=True))
    unknown = first._replace(forecast=first.forecast._replace(remaining_steps=None, total_steps=None))
    for instead, known in ((paused, False), (unknown, False), (first, True)):
        shown = corrected_times(replace(queue, outlooks=(instead, *queue.outlooks[1:])), OPTIMUS, Settings())[
            first.id
        ].shown
        assert (shown.end is not None) == known


def test_jobs_that_are_going_to_come_delay_those_that_are_there() -> None:
    job = running("a", 20_000, (4, 4), most=4)
    alone = a_queue(job, cpu=8.0)
    like = as_fresh(forecast_all([running("short", 500)], NOW, Settings())[0], "later", NOW + 60.0)
    crowded = replace(alone, arrivals=tuple(Arrival(NOW + 60.0 * n, like_number(like, n), 500.0) for n in range(1, 9)))
    assert end_of(crowded, "a").mean > end_of(alone, "a").mean


def test_a_job_that_is_going_to_come_has_a_deadline_of_its_own_and_no_promise() -> None:
    job = running("short", 500)
    due = replace(job, spec=replace(job.spec, deadline_at=job.submitted_at + 900.0), promised_at=NOW)
    later = as_fresh(forecast_all([due], NOW, Settings())[0], "later", NOW + 60.0)
    assert later.job.spec.deadline_at == NOW + 960.0
    assert later.job.promised_at is None


def test_among_many_jobs_later_ones_may_not_come_either() -> None:
    """60 jobs fill the cluster. As they end, the long one grows, unless others come that take the room."""
    short = [running(f"short-{n}", 500, most=1) for n in range(59)]
    alone = a_queue(running("long", 100_000), *short, cpu=120.0)
    like = next(one for one in alone.outlooks if one.id == "short-0")
    later = [like_number(like, number) for number in range(1, 61)]
    crowded = replace(alone, arrivals=tuple(Arrival(each.job.submitted_at, each, 1e6) for each in later))
    assert end_of(crowded, "long").low - NOW < 1.1 * (end_of(alone, "long").low - NOW)


def like_number(outlook: Outlook, number: int) -> Outlook:
    return as_fresh(outlook, f"later-{number}", NOW + 60.0 * number)


def test_a_doubtful_end_has_a_wider_interval() -> None:
    queue = a_queue(running("a", 1000, (2, 2)))
    (outlook,) = queue.outlooks
    left = outlook.forecast.remaining_steps
    assert left is not None
    doubtful = outlook.forecast._replace(remaining_steps=Interval(left.mean, left.mean / 3, left.mean * 3))
    sure, unsure = end_of(queue, "a"), end_of(replace(queue, outlooks=(outlook._replace(forecast=doubtful),)), "a")
    assert unsure.high - unsure.low > 2 * (sure.high - sure.low)


def test_later_submissions_come_as_often_as_the_recent_ones() -> None:
    recent = RecentJobs()
    jobs = [replace(running(f"j{n}", 1000), submitted_at=NOW - 100.0 * n) for n in range(1, 21)]
    recent.note(forecast_all(jobs, NOW, Settings()), NOW)
    arrivals = recent.arrivals(NOW)
    times = [each.submitted_at for each in arrivals]
    assert times == sorted(times)
    assert (times[-1] - NOW) / len(times) == pytest.approx(100.0, rel=0.2)
    assert {each.steps for each in arrivals} == {1000.0}


def test_nothing_is_expected_before_some_jobs_were_seen() -> None:
    recent = RecentJobs()
    recent.note(forecast_all([running("a", 1000)], NOW, Settings()), NOW)
    assert recent.arrivals(NOW) == ()


# --- jobs of unknown length ------------------------------------------------------------------------------------------


@given(lengths=st.lists(st.floats(0.0, 1e6), max_size=30), ran=st.floats(0.0, 1e6))
def test_a_job_of_unknown_length_goes_on_as_those_did_that_took_longer(lengths: list[float], ran: float) -> None:
    rest = rest_of_life(lengths, ran, 600.0)
    assert 0.0 < rest.low <= rest.mean <= rest.high
    longer = rest_of_life([length for length in lengths if length > ran], ran, 600.0)
    assert rest == longer or (ran < 600.0 and rest.mean <= longer.mean), "shorter ones tell only what is typical"


@given(lengths=st.lists(st.floats(10.0, 60.0), min_size=8, max_size=30), ran=st.floats(0.0, 60.0))
def test_where_all_jobs_are_short_a_new_one_is_not_taken_for_long(lengths: list[float], ran: float) -> None:
    assert rest_of_life(lengths, ran, 600.0).mean < 120.0
    assert rest_of_life([], ran, 600.0).mean == pytest.approx(600.0), "nothing is known"


def test_of_long_and_short_jobs_only_the_long_ones_say_how_an_old_one_goes_on() -> None:
    lengths = [100.0] * 50 + [10_000.0] * 50
    assert rest_of_life(lengths, 0.0, 600.0).low == pytest.approx(100.0)
    old = rest_of_life(lengths, 2000.0, 600.0)
    assert old.mean == pytest.approx(8000.0)
    assert rest_of_life(lengths, 20_000.0, 600.0).mean == pytest.approx(20_000.0), "longer than all: as long again"


def test_a_start_behind_a_job_of_unknown_length_goes_by_the_lengths_of_earlier_ones() -> None:
    endless = a_spec(minimum=(2, 2), maximum=(2, 2), rule=ConvergenceRule(target_loss=0.1))
    first = a_job("a", has=(2, 2), spec=endless, measured=samples(law(), ALL_SIZES), step=5000)
    first = replace(first, started_at=NOW - 1000.0)
    second = a_job("b", spec=endless, measured=samples(law(), ALL_SIZES))
    queue = a_queue(first, second, cpu=4.0)
    starts = {}
    for length in (1100.0, 3000.0):
        found = look_ahead(replace(queue, lengths=(length,) * 50), policy_named("fifo"), Settings())["b"].start
        assert found is not None
        assert found.low - NOW <= length - 1000.0 <= found.high - NOW
        starts[length] = found.mean - NOW
    assert starts[1100.0] < 300.0 < starts[3000.0]


def test_a_job_that_told_no_step_has_lost_what_it_had_done_when_it_begins_anew() -> None:
    spec = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(target_loss=0.1))
    silent = replace(a_job("a", has=(1, 1), spec=spec), started_at=NOW - 1000.0)
    waits = a_job("b", spec=spec)
    starts = {}
    for begins, step in ((NOW - 1000.0, 0), (NOW - 10.0, 0), (NOW - 10.0, 5)):
        first = replace(silent, allocated_at=begins, step=step)
        queue = replace(a_queue(first, waits, cpu=2.0), lengths=(1100.0,) * 50)
        found = look_ahead(queue, policy_named("fifo"), Settings())["b"].start
        assert found is not None
        starts[begins, step] = found.mean - NOW
    assert starts[NOW - 1000.0, 0] < 300.0 < 900.0 < starts[NOW - 10.0, 0]
    assert starts[NOW - 10.0, 5] < 300.0, "one that told steps goes on from them"


@pytest.mark.parametrize("policy", ["fifo", "optimus"])
def test_no_start_is_named_behind_a_job_that_is_not_known_to_end(policy: str) -> None:
    one_size = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(max_steps=1000))
    endless = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(target_loss=0.1))
    first = a_job("a", has=(1, 1), spec=endless, measured=samples(law(), ALL_SIZES), step=5000)
    first = replace(first, started_at=NOW - 1000.0)
    waits = a_job("b", spec=one_size, measured=samples(law(), ALL_SIZES))
    behind = a_queue(first, waits, cpu=2.0)
    for lengths in ((), (10.0, 900.0)):
        found = look_ahead(replace(behind, lengths=lengths), policy_named(policy), Settings())
        assert found["b"] == ExpectedTimes(None, None), "no job took longer than this one has run"
        assert found["a"].end is not None, "the queue has to go on"
    told = replace(first, losses=(1.0,) * 10, loss_steps=tuple(range(500, 5500, 500)))
    found = look_ahead(replace(a_queue(told, waits, cpu=2.0), lengths=(3000.0,) * 50), policy_named(policy), Settings())
    assert found["b"] == ExpectedTimes(None, None), "its losses tell no end: what others took says nothing of it"
    known = a_job("c", has=(1, 1), spec=one_size, measured=samples(law(), ALL_SIZES))
    found = look_ahead(a_queue(first, known, waits, cpu=4.0), policy_named(policy), Settings())
    start, end = found["b"].start, found["c"].end
    assert start is not None
    assert end is not None
    assert end.low <= start.mean <= end.high, "another job is known to end"


@pytest.mark.parametrize("jobs_that_come", [0, 1, 5, 30])
def test_behind_a_job_that_makes_no_step_no_later_job_gives_a_start(jobs_that_come: int) -> None:
    """Two jobs that each need the whole cluster were told to start in the same moment, when the look was over."""
    hangs = a_job(
        "hangs",
        has=(1, 1),
        spec=a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(max_steps=200)),
        measured=samples(law(), ALL_SIZES),
        step=59,
    )
    whole = a_spec(minimum=(1, 2), maximum=(8, 8), rule=ConvergenceRule(max_steps=1280))
    waiting = [a_job(name, spec=whole, submitted_at=NOW - age) for name, age in (("older", 30.0), ("newer", 20.0))]
    queue = a_queue(replace(hangs, started_at=NOW - 80.0), *waiting, cpu=3.0)
    small = forecast_all([a_job("small", spec=a_spec(minimum=(1, 0), maximum=(1, 0)))], NOW, Settings())[0]
    arrivals = [
        Arrival(NOW + 15.0 * n, as_fresh(small, f"later-{n}", NOW + 15.0 * n), 50.0) for n in range(jobs_that_come)
    ]
    queue = replace(queue, arrivals=arrivals, lengths=(75.0, 81.0, 5.0), stalled=frozenset(["hangs"]))
    found = look_ahead(queue, policy_named("optimus"), Settings())
    assert found["older"] == found["newer"] == ExpectedTimes(None, None)


def test_how_long_jobs_took_is_seen_when_they_are_gone() -> None:
    recent = RecentJobs()
    outlooks = forecast_all([replace(running(name, 1000), started_at=NOW) for name in "ab"], NOW, Settings())
    recent.note(outlooks, NOW + 50.0)
    assert not recent.lengths
    recent.note(outlooks[:1], NOW + 100.0)
    recent.note(outlooks[:1], NOW + 200.0)
    assert recent.lengths == (100.0,)


def test_the_end_of_a_wait_after_an_error_is_a_start_without_doubt_where_there_is_room() -> None:
    """However far apart the instants are that are looked at."""
    retry = Retry(2, 2, NOW + 248.0, 300.0, "OSError")
    failed = replace(
        running("failed", 100), allocation=NOTHING, state=JobState.PAUSED, allocated_at=NOW - 50, retry=retry
    )
    queue = a_queue(failed, running("long", 100_000, most=1))
    waits = replace(queue, sizes={**queue.sizes, "failed": NOTHING})
    start = corrected_times(waits, policy_named("optimus"), Settings())["failed"].shown.start
    assert start == Interval(NOW + 248.0, NOW + 248.0, NOW + 248.0)


@pytest.mark.parametrize("comes", [(), (8.0, 30.0)], ids=["nobody comes", "others may come before it"])
def test_a_job_that_is_tried_again_beside_one_that_can_give_room_likely_starts_then(comes: tuple[float, ...]) -> None:
    """No round has had it wait beyond that moment, so that the end of another job says nothing of its start."""
    retry = Retry(1, 1, NOW + 12.0, 32.0, "OSError")
    failed = replace(a_script("failed", 1, 100, has=False), state=JobState.PAUSED, allocated_at=NOW - 20, retry=retry)
    spec = a_spec(minimum=(1, 0), maximum=(4, 0), rule=ConvergenceRule(max_steps=400))
    spec = replace(spec, architecture=Architecture.SCRIPT)
    speeds = samples(lambda workers, _servers: 1.0 / (0.15 + 0.85 / workers), [(1, 0), (2, 0), (3, 0)])
    wide = a_job("wide", has=(2, 0), spec=spec, measured=speeds, allocated_at=NOW - 60.0)
    others = [a_script("n1", 1, 47, has=True), a_script("n2", 1, 90, has=True)]
    like = forecast_all([a_script("like", 1, 20, has=True)], NOW, Settings())[0]
    arrivals = tuple(Arrival(NOW + at, as_fresh(like, f"like-{at}", NOW + at), 60.0) for at in comes)
    queue = a_queue(failed, wide, *others, cpu=4.0, arrivals=arrivals)
    start = looked(replace(queue, sizes={**queue.sizes, "failed": NOTHING}))["failed"].start
    assert start is not None
    assert start.low == start.mean == NOW + 12.0
    assert (start.high > NOW + 12.0) == bool(comes)


def test_a_pause_that_all_futures_have_is_told_with_for_whom_and_why() -> None:
    """A short job waits for all that a long one has."""
    spec = a_spec(maximum=(1, 1), rule=ConvergenceRule(max_steps=100_000))
    long = a_job("long", has=(1, 1), spec=spec, measured=samples(law(), ALL_SIZES), allocated_at=NOW - 40.0)
    short = running("short", 500, (0, 0), 1)
    found = looked(a_queue(long, short, cpu=2.0))
    cut = found["long"].cut
    assert cut is not None
    assert (cut.pauses, cut.job_id, cut.why) == (True, "short", SOONER)
    assert NOW < cut.at.low <= cut.at.high < NOW + 600.0
    assert found["short"].freed_by == "long"
    assert looked(a_queue(long, cpu=2.0))["long"].cut is None
    roomy = looked(a_queue(long, short, cpu=4.0))
    assert (roomy["long"].cut, roomy["short"].freed_by) == (None, None)


def test_nobody_waits_for_the_end_of_a_job_that_hung_before_its_pause() -> None:
    """It starts in the place of one that ends, and may hang again: who waits behind it is told no start."""
    runs = running("runs", 100, most=1)
    paused = replace(running("hung", 200, (0, 0), 1), state=JobState.PAUSED, allocated_at=NOW - 50)
    behind = replace(running("behind", 300, (0, 0), 1), submitted_at=NOW - 1.0)
    queue = a_queue(runs, paused, behind, cpu=2.0)
    before = look_ahead(queue, policy_named("fifo"), Settings())
    assert before["hung"].end is not None
    assert before["behind"].start is not None
    after = look_ahead(replace(queue, stalled=frozenset({"hung"})), policy_named("fifo"), Settings())
    assert after["hung"].start is not None
    assert (after["hung"].end, after["behind"].start) == (None, None)


def test_what_one_future_has_and_another_does_not_is_no_pause_that_is_told() -> None:
    one, other = Cut(10.0, True, {1: LESS, 2: None}), Cut(30.0, True, {2: TURN, 1: LESS})
    ids = ["a", "b", "c"]
    assert agreed_cut(ids, [one, other]) == ExpectedCut(Interval(20.0, 10.0, 30.0), True, "b", LESS)
    assert agreed_cut(ids, [one, other._replace(gainers={2: TURN})]) == ExpectedCut(
        Interval(20.0, 10.0, 30.0), True, "c", None
    )
    for found in ([one], [one, None], [one, other._replace(pauses=False)], [one, other._replace(gainers={3: None})]):
        assert agreed_cut(ids, found) is None
    assert freed_by(1, [10.0, 30.0], [{0: one}, {0: other}]) == 0
    assert freed_by(1, [10.0, 31.0], [{0: one}, {0: other}]) is None


def test_a_foreseen_pause_is_as_doubtful_as_it_is_likely() -> None:
    """An end without it is as likely: rounds that are to come decide."""
    progress = Progress()
    progress.note(0.0, np.array([1.0, 1.0]), np.array([0.0, 0.0]))
    progress.note(10.0, np.array([0.0, 2.0]), np.array([0.0, 0.0]))
    progress.note(60.0, np.array([1.0, 2.0]), np.array([0.0, 0.0]))
    steps = np.array([30.0])
    assert progress.end(0, steps) == pytest.approx([80.0])
    assert progress.end_without_pause(0, steps) == pytest.approx([30.0])
    assert progress.end_without_pause(1, steps) is None


# --- starts of waiting jobs ------------------------------------------------------------------------------------------

FOUR = a_cluster(4.0)
QUOTA = (Quota("others", cpu=1.0),)


def of_slots(name: str, slots: int, seconds: float, has: bool) -> Job:
    """A job of one size, of one step a second: a worker, with a server where it needs two slots."""
    size = (1, slots - 1)
    spec = a_spec(minimum=size, maximum=size, rule=ConvergenceRule(max_steps=int(seconds)))
    if slots == 1:
        spec = replace(spec, architecture=Architecture.ALLREDUCE)
    measured = samples(lambda _w, _p: 1.0, [size])
    return a_job(name, has=size if has else (0, 0), spec=spec, measured=measured, submitted_at=NOW - 10.0)


def steps_of(job: Job) -> int:
    """In all."""
    steps = job.spec.convergence.max_steps
    assert steps is not None
    return steps


def of_four_slots(ends: list[float], waiting: list[tuple[int, float]], quotas: tuple[Quota, ...]) -> Queue:
    """Four jobs of a slot each that end in so many seconds, and those that wait: slots and seconds."""
    jobs = [of_slots(f"f{n}", 1, seconds, has=True) for n, seconds in enumerate(ends)]
    jobs += [replace(of_slots(f"g{n}", *each, has=False), submitted_at=NOW - 9.0 + n) for n, each in enumerate(waiting)]
    return replace(a_queue(*jobs, cpu=4.0), quotas=quotas)


def replayed(queue: Queue) -> dict[str, float]:
    """Starts of the jobs that wait, by rounds of the policy itself right after each end; nobody comes."""
    jobs = {one.id: one.job for one in queue.outlooks}
    stops = {one.id: one.stop_seconds for one in queue.outlooks}
    ends = {name: NOW + steps_of(job) for name, job in jobs.items() if not job.allocation.is_empty}
    starts: dict[str, float] = {}
    while ends:
        ended = min(ends, key=lambda name: ends[name])
        now = ends.pop(ended)
        del jobs[ended]
        outlooks = forecast_all([replace(job, step=_made(job, ends, now)) for job in jobs.values()], now, Settings())
        snapshot = Snapshot(now, FOUR, tuple(one.job for one in outlooks), (), queue.quotas)
        nowhere = {name: dict[TaskSlot, str]() for name in jobs}
        granted = allocate(outlooks, snapshot, nowhere, OPTIMUS, Settings(), Placer())
        for name in [name for name in jobs if name not in ends and not granted[name].allocation.is_empty]:
            starts[name] = now
            ends[name] = now + stops[name] + steps_of(jobs[name])
            has = granted[name].allocation
            jobs[name] = replace(jobs[name], state=JobState.RUNNING, started_at=now, allocation=has, allocated_at=now)
    return starts


def _made(job: Job, ends: dict[str, float], now: float) -> int:
    """Steps of a job by now; it makes one a second."""
    steps = steps_of(job)
    return int(min(max(steps - (ends[job.id] - now), 0), steps)) if job.id in ends else 0


apart = st.permutations([100.0, 190.0, 290.0, 400.0])
waiters = st.lists(st.tuples(st.integers(1, 2), st.floats(900.0, 1500.0)), min_size=1, max_size=3)
in_four_slots = waiters.filter(lambda drawn: sum(slots for slots, _ in drawn) <= 4)


@settings(max_examples=8)
@given(ends=apart, waiting=in_four_slots, quotas=st.sampled_from([(), QUOTA]))
def test_a_foreseen_start_is_that_of_the_policy_replayed(
    ends: list[float], waiting: list[tuple[int, float]], quotas: tuple[Quota, ...]
) -> None:
    """Lengths and speeds are known, nothing fails, and nobody comes."""
    queue = of_four_slots(ends, waiting, quotas)
    work = [Work(steps_of(one.job), 0.0, 0.0) for one in queue.outlooks]
    future = Trajectory(queue, [each.median for each in work], Rules(OPTIMUS, Settings(), 24, 0, 24))
    future.run()
    found = Doubts(future, work)
    starts = {one.id: set(found.starts(j)) for j, one in enumerate(queue.outlooks) if not one.has_tasks}
    assert starts == {name: {at} for name, at in replayed(queue).items()}


def test_who_waits_for_one_that_starts_at_a_doubtful_time_starts_as_doubtfully() -> None:
    """The first one gets its room from others, at some round: the end after it has all of that doubt."""
    size: dict[str, Any] = {"minimum": (1, 1), "maximum": (1, 1)}
    runs = a_job(
        "runs",
        has=(1, 1),
        spec=a_spec(**size, rule=ConvergenceRule(max_steps=842)),
        measured=samples(lambda _w, _p: 1.0, [(1, 1)]),
        submitted_at=NOW - 500.0,
        started_at=NOW - 200.0,
        allocated_at=NOW - 200.0,
        step=50,
    )
    first = a_job("first", spec=a_spec(**size, rule=ConvergenceRule(max_steps=100)), submitted_at=NOW - 900.0)
    second = replace(first, id="second", submitted_at=NOW - 250.0)
    queue = a_queue(runs, first, second, cpu=2.0)
    work = [Work(800.0 if one.id == "runs" else 100.0, 0.1, 0.1) for one in queue.outlooks]
    future = Trajectory(queue, [each.median for each in work], Rules(OPTIMUS, Settings(), 24, 24, 24))
    future.run()
    jobs = {one.id: j for j, one in enumerate(queue.outlooks)}
    cause = future.cause_of(jobs["second"])
    assert future.cause_of(jobs["first"]) is None, "it takes the room of a job that trains"
    assert cause is not None
    assert cause.job == jobs["first"]
    sooner, later = (Doubts(future, work).starts(jobs[name]) for name in ("first", "second"))
    assert np.ptp(later) >= 0.9 * np.ptp(sooner) > 0.0


def of_task(name: str, task: str, size: tuple[int, int], steps: int, speed: float, has: bool, step: int = 0) -> Job:
    """`steps` in all. Nobody knows its speeds before it runs."""
    spec = replace(a_spec(minimum=size, maximum=size, rule=ConvergenceRule(max_steps=steps)), family=task)
    spec = spec if size[1] else replace(spec, architecture=Architecture.ALLREDUCE)
    measured = samples(lambda _w, _p: speed, [size]) if has else ()
    return a_job(name, has=size if has else (0, 0), spec=spec, measured=measured, step=step)


def told_by(job: Job, speed: float) -> EndedJob:
    size = job.allocation.workers, job.allocation.servers
    speeds = samples(lambda _w, _p: speed, [size])
    spec = job.spec
    return EndedJob(
        job.id,
        spec.family,
        spec.project,
        spec.counted_batch,
        speed_samples=speeds,
        architecture=spec.architecture,
        total_steps=800,
    )


@pytest.mark.parametrize(
    ("task", "speed", "first"),
    [("wave", 20.0, "short"), ("wave", 200.0, "long"), ("another", 20.0, "long")],
    ids=["its task is slow", "its task is fast", "another task"],
)
def test_who_starts_first_counts_what_the_end_before_it_teaches(task: str, speed: float, first: str) -> None:
    """With an end of its task a round knows the speeds of a job that waits, and ranks it by them from then on."""
    steps = 1920.0 * speed / 20.0
    left = (8, 51, 66)  # seconds
    trains = [
        of_task(f"r{n}", task, (1, 1), int(steps), speed, has=True, step=int(steps - speed * seconds))
        for n, seconds in enumerate(left)
    ]
    long = replace(of_task("long", "wave", (1, 1), 1920, speed, has=False), submitted_at=NOW - 75.0)
    before = told_by(of_task("before", "script", (1, 0), 800, 20.0, has=True), 20.0)
    short = of_task("short", "script", (1, 0), 800, 20.0, has=False)
    short = replace(short, submitted_at=NOW - 74.0, similar=(before,))
    found = looked(a_queue(*trains, long, short, cpu=6.0))
    starts = {name: found[name].start for name in ("long", "short")}
    assert min(starts, key=lambda name: getattr(starts[name], "mean", np.inf)) == first

    taught = replace(long, similar=(told_by(trains[0], speed),)) if task == "wave" else long
    after = a_snapshot([*trains[1:], taught, short], a_cluster(6.0))
    sizes = {each.job_id: each.allocation for each in plan(after, OPTIMUS).decisions}
    assert [name for name in starts if not sizes[name].is_empty] == [first]


@pytest.mark.parametrize("task", ["wave", "another"])
def test_the_first_end_of_a_task_teaches_how_long_others_of_it_take(task: str) -> None:
    """Nobody knows the lengths of two that wait. With the end of one of its task a round knows that of the older."""
    trains = of_task("r", task, (1, 0), 2000, 20.0, True, 1840)
    trains = replace(trains, started_at=NOW - 92.0)
    others = [of_task(f"o{n}", f"t{n}", (1, 0), 20_000, 20.0, True, 10_000) for n in range(2)]
    older, younger = (
        replace(a_job(name, spec=replace(trains.spec, family=family, convergence=ConvergenceRule())), submitted_at=at)
        for name, family, at in (("older", "wave", NOW - 20.0), ("younger", "new", NOW - 10.0))
    )
    found = looked(a_queue(trains, *others, older, younger, cpu=3.0))
    starts = {name: found[name].start for name in ("older", "younger")}
    first = min(starts, key=lambda name: getattr(starts[name], "mean", np.inf))
    run = replace(told_by(trains, 20.0), total_steps=2000)
    taught = replace(older, similar=(run,)) if task == "wave" else older
    sizes = {
        each.job_id: each.allocation
        for each in plan(a_snapshot([*others, taught, younger], a_cluster(3.0)), OPTIMUS).decisions
    }
    assert (
        [name for name in starts if not sizes[name].is_empty] == [first] == ["younger" if task == "wave" else "older"]
    )


@pytest.mark.parametrize("by", ["steps", "epochs"])
def test_the_first_end_of_a_script_teaches_how_long_others_with_another_count_take(by: str) -> None:
    """Of two that wait the older one makes three times as many steps as the one that ends, by its command, the younger
    one a quarter."""
    trains = of_task("r", "script", (1, 0), 2000, 20.0, True, 1840)
    steps_per_epoch = 20.0 if by == "epochs" else None
    one = 20 if by == "epochs" else 1
    spec = replace(trains.spec, arguments=("--steps", f"{2000 // one}", "--lr", "0.1"))
    trains = replace(trains, started_at=NOW - 92.0, spec=spec, steps_per_epoch=steps_per_epoch)
    other = of_task("o", "other", (1, 0), 20_000, 20.0, True, 10_000)
    older, younger = (
        replace(
            a_job(name, spec=replace(spec, arguments=("--steps", f"{steps // one}"), convergence=ConvergenceRule())),
            submitted_at=NOW - age,
        )
        for name, steps, age in (("older", 6000, 20.0), ("younger", 500, 10.0))
    )
    found = looked(a_queue(trains, other, older, younger, cpu=2.0))
    first = min(("older", "younger"), key=lambda name: getattr(found[name].start, "mean", np.inf))
    run = replace(told_by(trains, 20.0), total_steps=2000, arguments=spec.arguments)
    if steps_per_epoch is not None:
        run = replace(run, losses=(1.0, 0.5), steps_per_epoch=steps_per_epoch, loss_steps=(1000.0, 2000.0))
    taught = [replace(each, similar=(run,)) for each in (older, younger)]
    decided = plan(a_snapshot([other, *taught], a_cluster(2.0)), OPTIMUS).decisions
    started = [each.job_id for each in decided if each.job_id != "o" and not each.allocation.is_empty]
    assert started == [first] == ["younger"]


@pytest.mark.parametrize(("arguments", "seconds"), [("500", 25.0), ("1000", 50.0), ("2000", 100.0)])
def test_behind_a_job_like_one_that_trains_a_start_is_told_by_how_long_that_takes(
    arguments: str, seconds: float
) -> None:
    """One slot. Nothing but the one that trains tells how long the first that waits takes."""
    trains = of_task("r", "script", (1, 0), 2000, 20.0, True, 1840)
    spec = replace(trains.spec, arguments=("--steps", "2000"))
    trains = replace(trains, started_at=NOW - 92.0, spec=spec)
    command = ConvergenceRule(ends_itself=True)
    first, second = (
        replace(
            a_job(name, spec=replace(spec, arguments=("--steps", steps), convergence=command)), submitted_at=NOW - age
        )
        for name, steps, age in (("first", arguments, 20.0), ("second", "9000", 10.0))
    )
    found = looked(a_queue(trains, first, second, cpu=1.0))
    start = found["second"].start
    assert start is not None
    begins = NOW + 8.0 + seconds
    assert start.low < begins < start.high
    assert start.mean - begins == pytest.approx(0.0, abs=0.3 * seconds)


@settings(max_examples=25)
@given(left=st.lists(st.integers(2, 200), min_size=3, max_size=3), same=st.booleans())
def test_of_two_that_wait_the_shorter_starts_first_whatever_is_left_of_those_that_train(
    left: list[int], same: bool
) -> None:
    """So that a look tells the same order at any time before. Their speeds are in doubt, and both about the same to
    those that train; the longer one is older. Of the same the older one starts first."""
    before = told_by(of_task("before", "script", (1, 0), 800, 20.0, has=True), 20.0)
    long, short = (
        replace(of_task(name, "script", (1, 0), steps, 20.0, has=False), similar=(before,), submitted_at=NOW - age)
        for name, steps, age in (("long", 1000, 20.0), ("short", 1000 if same else 600, 19.0))
    )
    trains = [of_task(f"r{n}", f"t{n}", (1, 0), 20 * 500, 20.0, True, 20 * (500 - each)) for n, each in enumerate(left)]
    ended = a_snapshot([*trains, long, short], a_cluster(4.0))
    sizes = {each.job_id: each.allocation for each in plan(ended, OPTIMUS).decisions}
    first = "long" if same else "short"
    assert [name for name in ("long", "short") if not sizes[name].is_empty] == [first]


@pytest.mark.parametrize("after", [5.0, 30.0, 90.0])
@pytest.mark.parametrize("quotas", [(), QUOTA], ids=["no quota", "a quota"])
def test_a_start_counts_that_guessed_jobs_may_not_come(quotas: tuple[Quota, ...], after: float) -> None:
    """They take slots that a job of two slots waits for: without them it starts one end earlier."""
    queue = of_four_slots([80.0, 171.0, 262.0, 380.0], [(1, 300.0), (2, 300.0)], quotas)
    guessed = [as_fresh(queue.outlooks[0], f"guessed-{n}", NOW + after * n) for n in range(1, 4)]
    arrivals = tuple(Arrival(each.job.submitted_at, each, 1000.0) for each in guessed)
    found = looked(replace(queue, arrivals=arrivals))
    for name, at in replayed(queue).items():
        start = found[name].start
        assert start is not None
        assert start.low <= at <= start.high, name
        assert start.mean - NOW <= 1.25 * (at - NOW), name


@pytest.mark.parametrize("most", [1, 4])
def test_a_job_that_a_limit_of_workers_keeps_out_waits_for_those_that_fill_it(most: int) -> None:
    """However large the cluster is, and whoever else ends before: the look goes as far as the limited jobs need."""
    together = [running("r4", 500, most=most), running("r5", 600, most=most), running("r6", 300, (0, 0), most=most)]
    together = [replace(job, spec=replace(job.spec, project="red")) for job in together]
    queue = a_queue(*together, running("other", 100), cpu=16.0)
    found = looked(replace(queue, worker_limits=(WorkerLimit(2, project="red"),)))["r6"]
    first = end_of(replace(queue, worker_limits=(WorkerLimit(2, project="red"),)), "r4")
    assert set(found.awaited) <= {"r4", "r5"}
    assert found.start is not None
    assert found.start.low >= first.low


@pytest.mark.parametrize("by_quota", [False, True], ids=["a limit of workers", "a quota that may not borrow"])
@pytest.mark.parametrize("trains", [False, True], ids=["nothing trains", "another trains"])
def test_no_start_is_told_of_a_job_that_no_end_lets_start(by_quota: bool, trains: bool) -> None:
    large, small = (
        replace(a_spec(minimum=(n, 1), maximum=(n, 1), rule=ConvergenceRule(max_steps=100)), project="red")
        for n in (2, 1)
    )
    jobs = [a_job("large", spec=large), *([a_job("small", has=(1, 1), spec=small)] if trains else [])]
    queue = a_queue(*jobs, cpu=8.0)
    if by_quota:
        queue = replace(queue, quotas=(Quota("red", cpu=2.0, may_borrow=False),))
    else:
        queue = replace(queue, worker_limits=(WorkerLimit(1, project="red"),))
    assert looked(queue)["large"].start is None


def test_a_start_with_the_end_of_one_that_starts_before_it_is_told_apart() -> None:
    """Two slots: `next` takes the room of `first`, and only with its end `last` starts."""
    first, alone = of_slots("first", 2, 20.0, has=True), of_slots("alone", 2, 30.0, has=False)
    last = replace(of_slots("last", 2, 300.0, has=False), submitted_at=NOW - 1.0)
    found = looked(a_queue(first, alone, last, cpu=2.0))
    assert found["alone"].awaited == found["last"].awaited == {"first": 1.0}
    assert (found["alone"].at_once, found["last"].at_once) == ({"first": 1.0}, {})


def a_script(name: str, workers: int, seconds: int, *, has: bool, waited: float = 0.0) -> Job:
    """Of exactly so many workers, of one step a second."""
    size = (workers, 0)
    spec = a_spec(minimum=size, maximum=size, rule=ConvergenceRule(max_steps=seconds))
    spec = replace(spec, architecture=Architecture.SCRIPT)
    measured = samples(lambda _w, _p: 1.0, [size])
    return a_job(name, has=size if has else (0, 0), spec=spec, measured=measured, submitted_at=NOW - waited)


def room_for_two() -> Queue:
    """Four slots, of which the end of `wide` frees two: for both jobs that wait."""
    jobs = [a_script("n1", 1, 600, has=True), a_script("n2", 1, 700, has=True), a_script("wide", 2, 45, has=True)]
    jobs += [a_script("n4", 1, 25, has=False, waited=8.0), a_script("n5", 1, 150, has=False, waited=5.0)]
    return a_queue(*jobs, cpu=4.0)


@pytest.mark.parametrize("comes", [(), (10.0, 25.0, 30.0, 44.0, 60.0, 90.0, 120.0)], ids=["nobody comes", "short ones"])
def test_one_end_that_frees_room_for_two_lets_both_start(comes: tuple[float, ...]) -> None:
    """Though guessed jobs, which are shorter, may take the room of the second before it."""
    like = forecast_all([a_script("like", 1, 20, has=True)], NOW, Settings())[0]
    arrivals = [Arrival(NOW + at, as_fresh(like, f"like-{at}", NOW + at), 20.0) for at in comes]
    found = looked(replace(room_for_two(), arrivals=arrivals))
    for name in ("n4", "n5"):
        assert found[name].awaited == {"wide": 1.0}
        assert found[name].at_once["wide"] > 0.8


def test_a_start_with_a_doubtful_end_is_told_for_the_time_of_that_end() -> None:
    """All that may come has it start with that end: it is not sooner because it is foreseen in several ways."""
    queue = room_for_two()
    doubtful = Interval(45.0, 9.0, 300.0)
    outlooks = [
        one._replace(forecast=one.forecast._replace(remaining_steps=doubtful)) if one.id == "wide" else one
        for one in queue.outlooks
    ]
    found = looked(replace(queue, outlooks=outlooks))
    end = found["wide"].end
    assert end is not None
    for name in ("n4", "n5"):
        start = found[name].start
        assert start is not None
        assert start.mean - NOW == pytest.approx(end.mean - NOW, rel=0.02)


def test_who_waits_starts_with_another_end_where_the_first_to_end_is_late_with_its_step() -> None:
    """The one would end after 3 s and has told no step for 40 s now, the other one ends after 60 s."""
    late = replace(a_script("late", 1, 23, has=True), step=20)
    waits = a_script("waits", 1, 100, has=False)
    queue = a_queue(late, a_script("long", 1, 60, has=True), waits, cpu=2.0)
    for silent, has_moved in ((1.5, False), (40.0, True)):
        hindrances = Hindrances(at=NOW + silent, silent_since={"late": NOW})
        found = looked(queue.with_hindrances(hindrances))
        start, end = found["waits"].start, found["late"].end
        assert start is not None
        assert end is not None
        if has_moved:
            assert NOW + 45.0 < start.mean < NOW + 70.0
            assert end.mean > NOW + 70.0, "as long again as it is late already"
            assert end.low < NOW + 50.0
            assert found["waits"].awaited["long"] > 0.3
        else:
            assert start.mean < NOW + 10.0
            assert end.mean < NOW + 10.0


def test_who_waits_may_start_when_a_job_fails_again_where_its_last_try_did() -> None:
    """It fails 40 s from now, or passes that step; the next end that is known comes after 209 s."""
    fails = replace(a_script("fails", 1, 200, has=True), step=20)
    waits = a_script("waits", 1, 100, has=False)
    queue = a_queue(fails, a_script("long", 1, 209, has=True), waits, cpu=2.0)
    unknown = looked(replace(queue, stalled=frozenset({"fails"})))["waits"].start
    found = looked(queue.with_hindrances(Hindrances({"fails": 60})))
    start = found["waits"].start
    assert unknown is not None
    assert unknown.low > NOW + 150.0
    assert start is not None
    assert start.low <= NOW + 41.0
    assert start.high >= NOW + 190.0
    assert 0.3 < found["waits"].at_once["fails"] < 0.7
    end = found["fails"].end
    assert end is not None
    assert end.low > NOW + 100.0, "that is told of it when it has passed the step"


def test_a_start_that_needs_an_end_and_a_loss_of_another_waits_for_both() -> None:
    """It needs two slots: that of `short`, and one that `large` loses at that instant."""

    def elastic(name: str, steps: int, has: tuple[int, int], **fields: Any) -> Job:
        spec = replace(a_spec(maximum=(2, 1), rule=ConvergenceRule(max_steps=steps)), priority=fields.pop("priority"))
        return a_job(name, has=has, spec=spec, measured=samples(law(), [(1, 1), (2, 1)]), **fields)

    since = NOW - 70.0
    large = elastic(
        "large", 400, (2, 1), priority=1.0, submitted_at=since, started_at=since, allocated_at=since, step=20
    )
    waits = elastic("waits", 30, (0, 0), priority=3.0, submitted_at=NOW - 36.0)
    queue = a_queue(a_script("short", 1, 14, has=True), large, waits, cpu=4.0)
    found = looked(replace(queue, outlooks=[one._replace(learning=False) for one in queue.outlooks]))["waits"]
    assert found.freed_by == "large"
    assert found.at_once["short"] > 0.5


@pytest.mark.parametrize("names", list(permutations(("a", "b", "c"))), ids="".join)
def test_of_equal_jobs_of_doubtful_length_the_older_starts_first(names: tuple[str, ...]) -> None:
    """Whatever they are called: as rounds do, which know no more of the one than of the other."""
    waiting = [replace(of_slots(each, 2, 100.0, has=False), submitted_at=NOW - 9.0 + k) for k, each in enumerate(names)]
    queue = a_queue(of_slots("first", 2, 20.0, has=True), *waiting, cpu=2.0)
    doubtful = Interval(100.0, 15.0, 600.0)
    outlooks = [
        one if one.id == "first" else one._replace(forecast=one.forecast._replace(remaining_steps=doubtful))
        for one in queue.outlooks
    ]
    found = looked(replace(queue, outlooks=outlooks))
    starts = [found[each].start for each in names]
    means = [math.inf if each is None else each.mean for each in starts]
    assert means == sorted(means)
    assert [found[each].at_once for each in names] == [{"first": 1.0}, {}, {}]


@pytest.mark.parametrize("other", [150.0, 230.0])
@pytest.mark.parametrize("by_quota", [False, True], ids=["a limit of workers", "a quota that may not borrow"])
def test_a_job_at_a_limit_waits_for_the_jobs_that_share_it(by_quota: bool, other: float) -> None:
    def of_project(job: Job) -> Job:
        return replace(job, spec=replace(job.spec, project="red"))

    ends = [200.0, 1e6]  # instants are far apart
    red = [of_project(of_slots(f"r{n}", 1, seconds, has=True)) for n, seconds in enumerate(ends)]
    waits = of_project(of_slots("waits", 1, 300.0, has=False))
    queue = a_queue(*red, waits, of_slots("other", 1, other, has=True), cpu=8.0)
    if by_quota:
        found = looked(replace(queue, quotas=(Quota("red", cpu=2.0, may_borrow=False),)))["waits"]
    else:
        found = looked(replace(queue, worker_limits=(WorkerLimit(2, project="red"),)))["waits"]
    assert found.awaited == {"r0": 1.0}
    assert found.start is not None
    assert found.start.low <= NOW + 200.0 <= found.start.high


# --- first tasks have to start ---------------------------------------------------------------------------------------


SEEN = {("m:f", Architecture.PS): (8.0, 9.0, 10.0), ("other:f", Architecture.SCRIPT): (500.0,)}


def training(job: Job, family: str = "m:f") -> Job:
    return replace(job, spec=replace(job.spec, family=family))


@pytest.mark.parametrize("family", ["m:f", "of-no-ended-job:f"])
def test_a_job_starts_when_its_first_tasks_take_part_and_not_when_it_is_given_them(family: str) -> None:
    one_size = a_spec(minimum=(2, 2), maximum=(2, 2), rule=ConvergenceRule(max_steps=1000))
    first = training(a_job("a", has=(2, 2), spec=one_size, measured=samples(law(), ALL_SIZES)))
    second = training(a_job("b", spec=one_size, measured=samples(law(), ALL_SIZES)), family)
    queue = a_queue(first, second, cpu=4.0)
    before, found = looked(queue, "fifo"), looked(replace(queue, start_ups=SEEN), "fifo")
    assert before["a"] == found["a"], "its tasks take part already"
    for there, here in ((found["b"].start, before["b"].start), (found["b"].end, before["b"].end)):
        assert there is not None
        assert here is not None
        for later, earlier in zip(there, here, strict=True):
            assert 3.0 < later - earlier < 20.0, "nine seconds, beside the doubts about the end before it"


def test_tasks_that_were_granted_some_time_ago_have_the_rest_of_their_start_up_left() -> None:
    job = training(running("a", 1000, most=1))
    left = []
    for ago in (1.0, 5.0):
        given = replace(job, started_at=None, formed=NOTHING, allocated_at=NOW - ago)
        start = looked(replace(a_queue(given), start_ups=SEEN))["a"].start
        assert start is not None
        assert NOW < start.low <= start.mean <= start.high
        left.append(start.mean - NOW)
    assert left[0] == pytest.approx(8.0, abs=1.5)
    assert left[0] - left[1] == pytest.approx(4.0, abs=1.5)
    assert looked(replace(a_queue(job), start_ups=SEEN))["a"].start is None, "it trains"


def test_the_end_of_a_job_that_starts_and_tells_some_of_its_steps_does_not_move_away() -> None:
    """For as long as it tells none it is taken to train, once such jobs do."""
    job = replace(training(running("j", 5000, (1, 1), 1)), formed=NOTHING, report_seconds=20.0)
    ends = []
    for ago in (0.0, 5.0, 9.0, 15.0, 28.0):
        starts = replace(job, allocated_at=NOW - ago, silent_since=NOW - 500.0)
        ends.append(end_of(replace(a_queue(starts), start_ups=SEEN), "j").mean - NOW + ago)
    assert max(ends) - min(ends) < 4.0, ends


@given(seconds=st.lists(st.floats(0.0, 1e5), min_size=1, max_size=8), elapsed=st.floats(0.0, 1e6))
def test_a_start_up_is_never_over_while_it_lasts(seconds: list[float], elapsed: float) -> None:
    left = start_up_seconds({("m:f", Architecture.PS): tuple(seconds)}, training(a_job("a")).spec, elapsed)
    assert left is not None
    assert 0.0 <= left.low <= left.mean <= left.high < math.inf
    assert start_up_seconds({("m:f", Architecture.SCRIPT): tuple(seconds)}, a_spec(), elapsed) is None


def test_a_start_waits_for_room_on_one_node() -> None:
    """With the first end four cores are free, but three of them on no node. None moves: each would lose its work."""
    nodes = tuple(Node(name, Resources(4.0, 256 * GIB)) for name in ("node-0", "node-1"))
    held = (("first", 400, "node-0"), ("last", 9000, "node-0"), ("second", 2000, "node-1"))
    trains = [
        replace(job, unsaved_seconds=1e5, wanted_tasks=tuple(each._replace(node=node) for each in job.wanted_tasks))
        for job, node in ((running(name, steps, most=1), node) for name, steps, node in held)
    ]
    spec = a_spec(maximum=(1, 1))
    spec = replace(spec, worker=replace(spec.worker, resources=Resources(3.0, GIB)))
    queue = replace(a_queue(*trains, a_job("waiting", spec=spec)), nodes=nodes)
    found = looked(queue)
    start, (first, second) = found["waiting"].start, (end_of(queue, name) for name in ("first", "second"))
    assert start is not None
    assert first.high < second.low
    assert start.mean - NOW == pytest.approx(second.mean - NOW, rel=0.05)
    assert max(found["waiting"].awaited, key=found["waiting"].awaited.__getitem__) == "second"
    one_node = replace(
        queue,
        nodes=(Node("node-0", Resources(8.0, 256 * GIB)),),
        moved={job.id: tuple(each._replace(node="node-0") for each in job.wanted_tasks) for job in trains},
    )
    sooner = looked(one_node)["waiting"].start
    assert sooner is not None
    assert sooner.mean < second.low


def test_who_goes_first_gets_the_room_of_the_end_that_is_known() -> None:
    """A job of unknown length frees nothing, though it was submitted long before."""
    one = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(max_steps=1000))
    endless = replace(one, convergence=ConvergenceRule(target_loss=0.1))
    hangs = a_job("hangs", has=(1, 1), spec=endless, measured=samples(law(), ALL_SIZES), step=5000)
    known = a_job("known", has=(1, 1), spec=one, measured=samples(law(), ALL_SIZES))
    older, newer = (
        a_job(name, spec=one, measured=samples(law(), ALL_SIZES), submitted_at=NOW - age)
        for name, age in (("older", 90.0), ("newer", 9.0))
    )
    queue = a_queue(replace(hangs, started_at=NOW - 30.0), known, older, newer, cpu=4.0)
    found = look_ahead(queue, policy_named("fifo"), Settings())
    first, second, end = found["older"].start, found["newer"].start, found["known"].end
    assert first is not None
    assert end is not None
    assert end.low <= first.mean <= end.high
    assert found["older"].awaited.keys() == {"known"}
    assert second is not None
    assert second.mean > first.mean + 10.0


def test_nobody_waits_for_the_end_of_a_job_that_makes_no_step() -> None:
    """Its end would come first, if it went on: the first of the queue gets the room of the next one."""
    one = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(max_steps=1000))
    hangs = a_job("hangs", has=(1, 1), spec=one, measured=samples(law(), ALL_SIZES), step=900)
    known = a_job("known", has=(1, 1), spec=one, measured=samples(law(), ALL_SIZES))
    older, newer = (
        a_job(name, spec=one, measured=samples(law(), ALL_SIZES), submitted_at=NOW - age)
        for name, age in (("older", 90.0), ("newer", 9.0))
    )
    queue = a_queue(hangs, known, older, newer, cpu=4.0)
    before = look_ahead(queue, policy_named("fifo"), Settings())
    assert before["older"].awaited.keys() == {"hangs"}
    found = look_ahead(replace(queue, stalled=frozenset(["hangs"])), policy_named("fifo"), Settings())
    assert found["older"].awaited.keys() == {"known"}
    first, second = found["older"].start, found["newer"].start
    assert first is not None
    assert second is None or second.mean > first.mean


@settings(max_examples=30, deadline=None)
@given(tail=st.floats(0.1, 1e4), step=st.integers(0, 60), silent=st.floats(0.0, 1e4))
def test_an_end_counts_what_ended_runs_took_after_their_last_step(tail: float, step: int, silent: float) -> None:
    one = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule(max_steps=60, ends_itself=True))
    spec = one if step < 60 else replace(one, convergence=ConvergenceRule(), announced_steps=60)
    job = a_job("a", has=(1, 1), spec=spec, measured=samples(law(), ALL_SIZES), step=step)
    queue = a_queue(replace(job, silent_since=NOW - silent))
    (outlook,) = queue.outlooks
    usual = Interval(tail, tail / 2.0, tail * 2.0)
    told = outlook._replace(forecast=outlook.forecast._replace(seconds_after_steps=usual))
    before, end = end_of(queue, "a").mean - NOW, end_of(replace(queue, outlooks=[told]), "a")
    if step < 60:
        assert end.mean - NOW == pytest.approx(before + tail, rel=0.1)
    elif silent < tail / 4.0:
        assert end.mean - NOW == pytest.approx(max(tail - silent, 0.1), rel=0.3, abs=2.0)
    assert NOW <= end.low <= end.mean <= end.high


@pytest.mark.parametrize("silent", [0.0, 5.0, 40.0])
@pytest.mark.parametrize("by", ["announced", "limit", "finish"])
def test_a_job_that_has_made_all_its_steps_and_those_that_wait_for_it_take_as_long_again(
    silent: float, by: str
) -> None:
    one = a_spec(minimum=(1, 1), maximum=(1, 1), rule=ConvergenceRule())
    saves = a_job("saves", has=(1, 1), spec=one, measured=samples(law(), ALL_SIZES), step=60)
    saves = replace(saves, silent_since=NOW - silent, report_seconds=30.0)
    if by == "announced":
        saves = replace(saves, spec=replace(one, announced_steps=60))
    elif by == "limit":
        saves = replace(saves, spec=replace(one, convergence=ConvergenceRule(max_steps=60)))
    else:
        saves = replace(saves, directive=Directive.FINISH)
    waits = a_job("waits", spec=one, measured=samples(law(), ALL_SIZES))
    found = look_ahead(a_queue(saves, waits, cpu=2.0), policy_named("fifo"), Settings())
    end, start = found["saves"].end, found["waits"].start
    assert end is not None
    assert start is not None
    since = max(silent, 1.0)
    assert 0.8 * since < end.mean - NOW < 1.3 * since + 1.0
    assert end.high - NOW > 4.0 * since
    assert 0.5 * since < start.mean - NOW < 1.3 * since + 1.0


@pytest.mark.parametrize("ends", [(15, 35), (15, 35, 37), (15, 35, 37, 50)])
def test_nobody_is_expected_to_start_before_the_job_that_room_is_kept_for(ends: tuple[int, ...]) -> None:
    """Room that is kept is used by nobody, so that all work takes longer than at the full use of the cluster."""
    running = [of_slots(f"r{i}", 1, end, True) for i, end in enumerate(ends)]
    waits = replace(of_slots("waits", 4, 20, False), submitted_at=NOW - 400.0)
    jump = of_slots("jump", 1, 20, False)
    jump = replace(jump, submitted_at=NOW - 4.0, spec=replace(jump.spec, priority=20.0))
    found = looked(a_queue(waits, jump, *running, cpu=4.0))
    kept_for, other = found["waits"].start, found["jump"].start
    assert kept_for is not None
    assert other is not None
    assert kept_for.low >= NOW + 0.75 * ends[-1]  # with the last of these ends ...
    assert other.low > kept_for.low + 10.0  # ... and the other with its own end or about it
    assert other.mean > kept_for.mean + 15.0
    assert other.high < kept_for.high + 120.0


@pytest.mark.parametrize(("ran", "every"), [(50.0, None), (85.0, 80), (120.0, 20)])
def test_a_job_that_waits_for_one_of_unknown_length_ends_when_it_has_started_and_trained(
    ran: float, every: int | None
) -> None:
    """In a trajectory in which it does not start, it does not train for longer."""
    unknown = replace(of_slots("unknown", 1, 600, True), started_at=NOW - ran, allocated_at=NOW - ran)
    unknown = replace(unknown, spec=replace(unknown.spec, convergence=ConvergenceRule()), speed_samples=())
    waits = of_slots("waits", 2, 30, False)
    queue = a_queue(unknown, waits, cpu=2.0)
    later = [NOW + after for after in range(20, 400, every)] if every else []
    fresh = next(one for one in queue.outlooks if one.id == "waits")
    arrivals = tuple(Arrival(at, as_fresh(fresh, f"later-{at}", at), 30.0) for at in later)
    queue = replace(queue, arrivals=arrivals, lengths=(200.0, 20.0), stalled=frozenset({"unknown"}))
    expected = looked(queue)["waits"]
    if expected.start is not None:
        assert expected.end is not None
        assert expected.end.mean < 3.0 * (expected.start.mean - NOW) + 60.0 + NOW


def test_a_start_long_after_an_end_is_as_doubtful_as_the_wait_after_it() -> None:
    """Behind two others, of which the first goes on with a known end: nothing is known of the second."""
    ends = of_slots("ends", 2, 24, True)
    first, second = (of_slots(name, 2, 600, False) for name in ("first", "second"))
    first, second = (
        replace(each, spec=replace(each.spec, convergence=ConvergenceRule()), speed_samples=(), submitted_at=NOW - age)
        for each, age in ((first, 3.0), (second, 1.0))
    )
    start = looked(replace(a_queue(ends, first, second, cpu=2.0), lengths=(80.0,)))["second"].start
    assert start is not None
    assert NOW + 24.0 < start.low < NOW + 0.3 * (start.mean - NOW) < start.high
