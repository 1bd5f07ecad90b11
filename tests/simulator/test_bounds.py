"""No schedule beats a bound: not one of our policies, and not the best of all on small cases."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from optimus_cli.app import app
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Architecture, ConvergenceRule, JobSpec, Resources, TaskDemand
from optimus_scheduler.place.network_cost import transfer_cost
from optimus_simulator.bounds.area import cheapest_speeds, least_makespan, one_machine
from optimus_simulator.bounds.bound import Bound, bound
from optimus_simulator.bounds.needs import Need, TooManySizes, least_seconds, needs_of
from optimus_simulator.bounds.prices import JobTimes, Sizes
from optimus_simulator.options import Options
from optimus_simulator.outcome.comparison import columns_among, compare, possible
from optimus_simulator.outcome.outcome import Outcome
from optimus_simulator.replay import Replay
from optimus_simulator.scenario import bound_of, load
from optimus_simulator.trace import Trace, TraceJob, equal_nodes, in_order
from optimus_simulator.truth.truth import AllReduceLaw, MeasuredLaw, ParameterServerLaw, ParametricTruth, PlacedTruth

GPUS = 2
NO_STOPS = Options(restart_seconds=0.0)
MakeTrace = Callable[..., Trace]


def spec(most: int, deadline_at: float | None = None) -> JobSpec:
    return JobSpec(
        worker=TaskDemand(Resources(gpus={"gpu": 1}), 1, most),
        server=TaskDemand(Resources(), 0, 0),
        convergence=ConvergenceRule(),
        architecture=Architecture.ALLREDUCE,
        requested_workers=min(most, 2),
        requested_servers=0,
        deadline_at=deadline_at,
    )


def job(name: str, at: float, steps: float, speedup: float, deadline_at: float | None = None) -> TraceJob:
    """`steps` seconds long on one GPU, so many times as fast on two."""
    law = MeasuredLaw(AllReduceLaw(1.0, 0.0), ((1, 0, 1.0), (2, 0, speedup)))
    return TraceJob(name, at, spec(2, deadline_at), ParametricTruth(steps, law))


def trace_of(*jobs: TraceJob, gpus: int = GPUS) -> Trace:
    return Trace("small", equal_nodes(1, Resources(gpus={"gpu": gpus})), in_order(jobs))


# --- the best of all schedules in slots ------------------------------------------------------------------------------

SLOTS = 11


def best_of_all(trace: Trace) -> tuple[float, float, int]:
    """The least mean completion time, the least makespan and the most deadlines met, each of any schedule that decides
    at whole seconds; a job frees its GPUs at the next one.
    """
    jobs = trace.jobs
    sizes = [size for size in product(range(GPUS + 1), repeat=len(jobs)) if sum(size) <= GPUS]

    def speed(number: int, gpus: int) -> float:
        return jobs[number].truth.steps_per_second(((gpus, 0),)) if gpus else 0.0

    @cache
    def best(now: int, left: tuple[float, ...]) -> tuple[float, float, int]:
        if not any(left):
            return 0.0, 0.0, 0
        if now == SLOTS:
            return math.inf, math.inf, 0
        found = []
        for size in sizes:
            if any(gpus and (not left[n] or jobs[n].submitted_at > now) for n, gpus in enumerate(size)):
                continue
            ended, rest = [], list(left)
            for n, gpus in enumerate(size):
                if gpus and left[n] <= speed(n, gpus) + 1e-9:
                    ended.append((n, now + left[n] / speed(n, gpus)))
                    rest[n] = 0.0
                else:
                    rest[n] = round(left[n] - speed(n, gpus), 9)
            later = best(now + 1, tuple(rest))
            met = sum(end <= (jobs[n].spec.deadline_at or -1.0) + 1e-9 for n, end in ended)
            total = sum(end - jobs[n].submitted_at for n, end in ended)
            found.append((later[0] + total, max([later[1], *(end for _, end in ended)]), later[2] + met))
        totals, makespans, counts = zip(*found, strict=True)
        return min(totals), min(makespans), max(counts)

    total, end, met = best(0, tuple(float(each.truth.begin().steps_left()) for each in jobs))
    return total / len(jobs), end - min(each.submitted_at for each in jobs), met


small_jobs = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([1.0, 1.5, 2.0, 3.0]),
        st.sampled_from([1.0, 1.3, 1.7, 2.0]),
        st.integers(1, 5),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=12, deadline=None)
@given(small_jobs)
def test_the_best_of_all_schedules_is_no_better(jobs: list[tuple[int, float, float, int]]) -> None:
    trace = trace_of(*(job(f"j{n}", at, steps, up, at + due) for n, (at, steps, up, due) in enumerate(jobs)))
    mean, makespan, met = best_of_all(trace)
    found = bound(trace, NO_STOPS)
    assert found.mean_jct_seconds <= mean + 1e-6
    assert found.makespan_seconds <= makespan + 1e-6
    assert found.deadlines_met is not None
    assert found.deadlines_met >= met / len(jobs) - 1e-9


def test_bounds_are_exact_where_the_best_is_known() -> None:
    """One job alone; and jobs that scale perfectly, for which one after the other, the shortest first, is best."""
    alone = bound(trace_of(job("a", 5.0, 8.0, 1.6)), NO_STOPS)
    assert alone.mean_jct_seconds == pytest.approx(5.0)
    assert alone.makespan_seconds == pytest.approx(5.0)
    both = bound(trace_of(job("a", 0.0, 2.0, 2.0), job("b", 0.0, 4.0, 2.0)), NO_STOPS)
    assert both.mean_jct_seconds == pytest.approx((1.0 + 3.0) / 2)
    assert both.squashed_area_seconds == pytest.approx(both.mean_jct_seconds)
    assert both.makespan_seconds == pytest.approx(3.0, rel=1e-5)


def test_the_programme_sees_what_the_simple_bounds_do_not() -> None:
    """Forty jobs that hardly scale: alone each is fast, and at its best size the cluster is full all the time."""
    jobs = [job(f"j{n}", 0.5 * n, 40.0, 1.25) for n in range(40)]
    found = bound(trace_of(*jobs, gpus=8), NO_STOPS)
    assert found.programme_seconds is not None
    assert found.programme_seconds > 1.02 * max(found.alone_seconds, found.squashed_area_seconds)


def test_a_deadline_that_one_of_two_can_meet_is_counted_once() -> None:
    jobs = [job(f"j{n}", 0.0, 4.0, 2.0, deadline_at=3.0) for n in range(2)]
    assert bound(trace_of(*jobs), NO_STOPS).deadlines_met == 0.5


# --- our own policies ------------------------------------------------------------------------------------------------


def assert_no_better(outcome: Outcome, found: Bound) -> None:
    figures = outcome.figures()
    assert figures["mean_jct_seconds"] >= found.mean_jct_seconds - 1e-6
    assert figures["makespan_seconds"] >= found.makespan_seconds - 1e-6
    if found.deadlines_met is not None:
        assert figures["deadlines_met"] <= found.deadlines_met + 1e-9


random_jobs = st.lists(
    st.tuples(st.floats(0, 3000), st.floats(10, 3000), st.floats(0.0, 0.9), st.integers(1, 8), st.floats(50, 5000)),
    min_size=1,
    max_size=8,
)


@settings(max_examples=12, deadline=None)
@given(random_jobs, st.sampled_from(["optimus", "optimus-paper", "srtf", "drf", "tiresias", "fifo"]), st.booleans())
def test_no_policy_is_better(jobs: list[tuple[float, float, float, int, float]], policy: str, oracle: bool) -> None:
    entries = [
        TraceJob(
            f"j{n}", at, spec(most, at + due), ParametricTruth(steps, AllReduceLaw(1.0, exchange), crossing_factor=0.8)
        )
        for n, (at, steps, exchange, most, due) in enumerate(jobs)
    ]
    trace = Trace("random", equal_nodes(2, Resources(gpus={"gpu": 4})), in_order(entries))
    options = Options(oracle=oracle)
    assert_no_better(Replay(trace, policy_named(policy), options).run(), bound(trace, options))


@pytest.mark.parametrize("policy", ["optimus", "srtf", "tetris"])
def test_no_policy_is_better_with_servers(server_trace: MakeTrace, policy: str) -> None:
    trace, options = server_trace(6), Options(oracle=True)
    assert_no_better(Replay(trace, policy_named(policy), options).run(), bound(trace, options))


@pytest.mark.parametrize("elastic", [False, True])
def test_no_policy_is_better_on_measured_jobs(data: Path, elastic: bool) -> None:
    whole = load(f"pollux:{data}/pollux/workloads/workload-6.csv", Options(elastic_batch=elastic), 0)
    short = [each for each in whole.jobs if each.spec.family != "imagenet"][:6]
    trace, options = Trace("some", whole.nodes[:1], tuple(short)), Options(oracle=True)
    outcome, found = Replay(trace, policy_named("optimus"), options).run(), bound(trace, options)
    assert_no_better(outcome, found)
    assert outcome.figures()["mean_jct_seconds"] < 2 * found.mean_jct_seconds


def lived_job(number: int, values: tuple[float, ...], type_speed: float, has_servers: bool) -> dict[str, Any]:
    at, steps, exchange, most, due, start, change = values
    ring = {"compute_seconds": 1.0, "exchange_seconds": exchange, "measured": [[1, 0, 1.3]]}
    kind = {"architecture": "ps", "servers": {"cpu": 1, "maximum": 3}} if has_servers else {"architecture": "allreduce"}
    speed = {"theta": [1.0, 0.1, exchange, 0.0, 0.0], "measured": [[1, 1, 0.8]]} if has_servers else ring
    return {
        **kind,
        "id": f"j{number}",
        "submitted_at": at,
        "workers": {"cpu": 1, "gpus": {"gpu": 1}, "maximum": int(most)},
        "project": ("a", "b")[number % 2],
        "deadline_seconds": due,
        "truth": {"total_steps": steps, "speed": speed, "type_speeds": {"gpu": type_speed}},
        "happened": {
            "state": ("succeeded", "failed", "cancelled")[number % 3],
            "finished_at": at + steps,
            "start_seconds": start or None,
            "change_seconds": [change] if number % 2 else [],
            "stops": [change, 1000.0],
        },
    }


lived_jobs = st.lists(
    st.tuples(
        st.tuples(
            *(st.floats(0, 300), st.floats(1, 300), st.floats(0.0, 0.9), st.integers(1, 6)),
            *(st.floats(1, 500), st.sampled_from([0.0, 0.5, 3.0, 90.0]), st.floats(0, 60)),
        ),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=6, deadline=None)
@given(lived_jobs, st.sampled_from(["1", "3"]))
def test_no_policy_is_better_on_what_a_service_wrote(jobs: list[Any], load: str) -> None:
    """Both commands take the same stops from a recorded trace, whatever they are by default."""
    cluster = {
        "nodes": [{"count": 2, "cpu": 6, "memory_gib": 4, "gpus": {"gpu": 3}}],
        "projects": {"a": {"share": 0.5}},
        "round_seconds": 20.0,
        "learning_round_seconds": 5.0,
    }
    with TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        path.write_text("\n".join(map(json.dumps, [cluster, *(lived_job(n, *job) for n, job in enumerate(jobs))])))
        words = [str(path), "--load", load, "--json"]
        found = json.loads(CliRunner().invoke(app, ["bound", *words], catch_exceptions=False).stdout)
        policies = ["--policy", "optimus,drf,srtf,tiresias,fifo", "--processes", "1"]
        simulated = ["simulate", *policies, "--bound", "--trace", *words]
        done = json.loads(CliRunner().invoke(app, simulated, catch_exceptions=False).stdout)
    assert done["assumed"]["restart_seconds"] == [found["start_seconds"]]
    for each in done["policies"]:
        figures = each["figures"]
        assert each["bounds"] == [found]
        assert figures["mean_jct_seconds"] >= found["mean_jct_seconds"] - 1e-6
        assert figures["makespan_seconds"] >= found["makespan_seconds"] - 1e-6
        assert figures["deadlines_met"] <= found["deadlines_met"] + 1e-9


def test_the_bound_says_what_it_assumes(tmp_path: Path) -> None:
    path = tmp_path / "day.jsonl"
    lived = [lived_job(n, (0.0, 100.0, 0.1, 2.0, 200.0, 2.0, 5.0), 1.0, has_servers=False) for n in range(2)]
    cluster = {"nodes": [{"count": 1, "cpu": 6, "gpus": {"gpu": 3}}]}
    path.write_text("\n".join(map(json.dumps, [cluster, *lived])))
    measured = "no progress for 2 s (median of 2 starts and 1 change of size that were measured) at the first start"
    assert measured in CliRunner().invoke(app, ["bound", str(path)]).output
    given = CliRunner().invoke(app, ["bound", str(path), "--set", "restart_seconds=7"]).output
    assert "no progress for 7 s at the first start" in given


def test_a_policy_that_drops_jobs_is_compared_with_no_bound() -> None:
    """The bound is one of all jobs: the mean of those that it kept may be less."""
    trace = trace_of(job("a", 100.0, 800.0, 1.6), job("b", 0.0, 20.0, 1.6))
    kept = replace(Replay(trace, policy_named("srtf"), NO_STOPS).run(), bound=bound(trace, NO_STOPS))
    jobs = tuple(replace(each, dropped=each.id == "a") for each in kept.jobs)
    dropping = replace(kept, jobs=jobs, policy="dropping")
    assert dropping.figures()["mean_jct_seconds"] < bound(trace, NO_STOPS).mean_jct_seconds
    of_kept, of_dropping = compare([kept, dropping])
    assert of_kept.figures["above_bound"].mean >= 0
    assert "above_bound" not in of_dropping.figures
    (column,) = (each for each in columns_among([of_kept, of_dropping]) if each.name == "above_bound")
    assert column.cell(of_dropping.figures) == "—"
    said = possible([of_kept, of_dropping])
    assert said[0].startswith("srtf: mean JCT within ")
    assert said[1:] == [
        "dropping: not compared with what is possible: it declined jobs, and the bound is one of all jobs."
    ]
    (mixed,) = compare([kept, replace(dropping, policy=kept.policy)])
    assert "above_bound" not in mixed.figures


# --- the parts -------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5)), min_size=1, max_size=5), st.permutations(range(5)))
def test_shortest_first_is_no_later_than_any_order(jobs: list[tuple[int, int]], order: list[int]) -> None:
    jobs = sorted(jobs)
    ends = one_machine([float(at) for at, _ in jobs], [float(length) for _, length in jobs])
    now, total = 0.0, 0.0
    for index in [index for index in order if index < len(jobs)]:
        at, length = jobs[index]
        now = max(now, at) + length
        total += now
    assert sum(ends) <= total + 1e-9
    assert all(end >= at + length for end, (at, length) in zip(ends, jobs, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0.0, 5.0), min_size=6, max_size=6),
    st.floats(0.0, 60.0),
    st.floats(20.0, 400.0),
    st.sampled_from([1.0, 1.2, 1.5, 2.0]),
)
def test_no_way_through_a_job_costs_less_than_is_said(
    prices: list[float], at: float, steps: float, speedup: float
) -> None:
    """Weak duality; and the way that is found does the whole job within its time, at about that cost: its parts are few
    here, and it pays for whole ones."""
    (need,) = needs_of(trace_of(job("a", at, steps, speedup, at + 1.5 * steps)), 0.0)
    edges = np.array([0.0, 30.0, 60.0, 100.0, 150.0, 300.0, 2000.0])
    each = np.array(prices)[:, None]
    each[-1] = 0.0
    sizes = Sizes.of(need.work)
    times = JobTimes.on(need, sizes, edges)
    for choice in (times.soonest(each), times.in_time(each)):
        assert choice.least <= choice.cost + float((choice.usage * each).sum()) + 1e-6
        assert choice.least >= 0.7 * (choice.cost + float((choice.usage * each).sum())) - 1e-6
    found = times.soonest(each)
    held = float(found.usage.sum())
    assert held >= need.work.least_area(np.ones(1)) * (1 - 1e-6)
    assert at + found.cost >= times.earliest - 1e-6


def too_much(needs: list[Need], begin: float, end: float) -> bool:
    """Whether what is left of the jobs at one instant takes more of a resource than there is until the end."""
    for resource in range(needs[0].work.usage.shape[1]):
        taken = 0.0
        for need in needs:
            usage, speeds = cheapest_speeds(need.work.usage[:, resource], need.work.speeds())
            left = 1.0 - max(begin - need.trains_from, 0.0) * speeds[-1]
            time = end - max(need.trains_from, begin)
            taken += float(np.interp(left / time, speeds, usage)) * time if left > 0 and time > 0 else 0.0
        if taken > (end - begin) * (1 + 1e-9):
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 200.0), st.floats(1.0, 400.0), st.sampled_from([1.0, 1.3, 2.0])),
        min_size=1,
        max_size=9,
    )
)
def test_an_end_before_the_makespan_is_too_soon_and_none_later(jobs: list[tuple[float, float, float]]) -> None:
    """At the bound no instant says that an end is impossible; a little before one does, or a job takes longer alone."""
    needs = needs_of(trace_of(*(job(str(n), *each) for n, each in enumerate(jobs))), 5.0)
    end = least_makespan(needs) + min(need.submitted_at for need in needs)
    instants = [need.trains_from for need in needs]
    assert not any(too_much(needs, begin, end + 0.01) for begin in instants if begin < end)
    alone = max(need.trains_from + need.work.shortest for need in needs)
    assert end >= alone
    assert end == alone or any(too_much(needs, begin, end - 0.01) for begin in instants if begin < end - 0.01)


def either_type(at: float, steps: float, speedup: float) -> TraceJob:
    """A job that may have either of two GPU types, as fast on one as on the other."""
    one = job(str(at), at, steps, speedup)
    worker = TaskDemand(Resources(gpus={"x": 1}), 1, 2)
    return replace(one, spec=replace(one.spec, worker=worker, gpu_types=("x", "y")))


def test_gpu_types_of_which_any_will_do_are_scarce_together() -> None:
    """No job needs one of them, so that neither alone says more than that jobs are not faster than alone."""
    jobs = [(float(n), 300.0, 1.6) for n in range(6)]
    types = {"x": 2, "y": 2}
    mixed = Trace("mixed", equal_nodes(1, Resources(cpu=64.0, gpus=types)), tuple(either_type(*each) for each in jobs))
    alike = trace_of(*(job(str(n), *each) for n, each in enumerate(jobs)), gpus=4)
    for programme in (False, True):
        of_types, of_one = (bound(trace, NO_STOPS, programme=programme) for trace in (mixed, alike))
        assert of_types.squashed_area_seconds == pytest.approx(of_one.squashed_area_seconds)
        assert of_types.mean_jct_seconds == pytest.approx(of_one.mean_jct_seconds, rel=0.1)
        reached = Replay(mixed, policy_named("optimus"), NO_STOPS).run().figures()["mean_jct_seconds"]
        assert of_one.alone_seconds < of_types.mean_jct_seconds <= reached


def test_transfer_is_no_more_than_any_placement_makes() -> None:
    core = Resources(1.0)
    law = ParameterServerLaw((0.0, 0.001, 1.0, 0.0, 0.0), 32.0)
    truth = PlacedTruth(1.0, law)
    nodes = equal_nodes(4, Resources(3.0))
    asked = JobSpec(worker=TaskDemand(core, 1, 6), server=TaskDemand(core, 1, 6), convergence=ConvergenceRule())
    for workers, servers in product(range(1, 6), range(1, 6)):
        (said,) = least_seconds(truth, asked, [(workers, servers)], nodes)[0]
        each = [(w, p) for w in range(4) for p in range(4 - w)]
        costs = [
            transfer_cost([counts for counts in placed if counts != (0, 0)])
            for placed in product(each, repeat=4)
            if sum(w for w, _ in placed) == workers and sum(p for _, p in placed) == servers
        ]
        assert said <= 0.001 + min(costs, default=math.inf) + 1e-9, (workers, servers)


# --- from the command line -------------------------------------------------------------------------------------------

CSV = "# nodes=2 gpus=4\nid,submitted_at,workers,duration_seconds\nx,0,4,600\ny,30,2,300\nz,60,8,900\n"


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(CSV, encoding="utf-8")
    return path


def test_the_command_says_the_bound_and_simulations_how_far_they_are_from_it(csv: Path) -> None:
    run = CliRunner()
    said = json.loads(run.invoke(app, ["bound", str(csv), "--json"]).output)
    done = run.invoke(app, ["simulate", "--trace", str(csv), "--policy", "optimus", "--bound", "--json"])
    (result,) = json.loads(done.output)["policies"]
    assert result["bounds"] == [said]
    expected = result["figures"]["mean_jct_seconds"] / said["mean_jct_seconds"] - 1.0
    assert result["figures"]["above_bound"] == pytest.approx(expected)
    assert expected >= 0.0
    table = run.invoke(app, ["simulate", "--trace", str(csv), "--policy", "optimus", "--bound"]).output
    assert f"optimus: mean JCT within {expected:.1%} of what is possible" in table
    assert "linear programme" in run.invoke(app, ["bound", str(csv)]).output


def test_without_a_flag_policies_are_compared_with_bounds_that_take_a_moment(
    csv: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "optimus_simulator.bounds.bound.best_prices", lambda *_words, **_more: pytest.fail("a programme")
    )
    words = ["simulate", "--trace", str(csv), "--policy", "optimus,fifo", "--seeds", "2", "--processes", "1"]
    document = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    for result in document["policies"]:
        assert all(each["programme_seconds"] is None for each in result["bounds"])
        assert len(result["bounds"]) == 2
        for run, least in zip(result["runs"], result["bounds"], strict=True):
            assert least["mean_jct_seconds"] == max(least["alone_seconds"], least["squashed_area_seconds"])
            assert run["above_bound"] == pytest.approx(run["mean_jct_seconds"] / least["mean_jct_seconds"] - 1.0)
            assert 0.0 <= run["makespan_above_bound"] < 1.0
    report = tmp_path / "report.html"
    text = CliRunner().invoke(app, [*words, "--html", str(report)]).output
    least = document["policies"][0]["bounds"][0]["mean_jct_seconds"]
    for result in document["policies"]:
        jct, makespan = (result["figures"][name] for name in ("above_bound", "makespan_above_bound"))
        said = f"mean JCT within {jct:.1%} of what is possible (no scheduler is below {least:,.0f} s), makespan within"
        assert f"{result['policy']}: {said} {makespan:.1%}" in text
        assert said in report.read_text(encoding="utf-8")
    assert "With --bound a linear programme gives nearer ones" in text


def test_where_there_is_no_bound_a_line_says_why(data: Path, tmp_path: Path) -> None:
    few = tmp_path / "workloads" / "workload-6.csv"
    few.parent.mkdir()
    (tmp_path / "profiles").symlink_to(data / "pollux/profiles")
    few.write_text("".join((data / "pollux/workloads/workload-6.csv").read_text().splitlines(keepends=True)[:13]))
    words = ["simulate", "--trace", f"pollux:{few}", "--policy", "fifo,tiresias"]
    why = "epochs of whole seconds (--like-pollux) may take less than they need: there is no bound for them"
    for flag in ([], ["--bound"]):
        text = CliRunner().invoke(app, [*words, "--like-pollux", "--processes", "1", *flag]).output
        assert text.count(f"Not compared with what is possible: {why}.") == 1
        assert "of what is possible (" not in text
    document = json.loads(CliRunner().invoke(app, [*words, "--like-pollux", "--processes", "1", "--json"]).output)
    assert [result["no_bound"] for result in document["policies"]] == [why, why]
    assert not any("bounds" in result or "above_bound" in result["figures"] for result in document["policies"])


def test_deadlines_that_cannot_be_met_are_told_once() -> None:
    trace = trace_of(job("a", 0.0, 100.0, 2.0, 20.0), job("b", 0.0, 100.0, 2.0, 2000.0))
    least = bound(trace, NO_STOPS, programme=False)
    assert least.deadlines_met == 0.5
    runs = [replace(Replay(trace, policy_named(name), NO_STOPS).run(), bound=least) for name in ("fifo", "optimus")]
    said = possible(compare(runs))
    assert said.count("No scheduler meets more than 50.0% of the deadlines.") == 1
    other = replace(runs[1], bound=replace(least, deadlines_met=1.0))
    assert "optimus: no scheduler meets more than 100.0% of the deadlines." in possible(compare([runs[0], other]))


def test_too_many_sizes_have_a_bound_only_where_it_was_asked_for(tmp_path: Path) -> None:
    """It would take longer than a moment."""
    path = tmp_path / "large.jsonl"
    size = {"cpu": 1, "minimum": 1, "maximum": 400}
    speed = {"theta": [1.0, 1.0, 0.1, 0.0, 0.0]}
    one = {
        "id": "a", "submitted_at": 0, "workers": size, "servers": size, "convergence": {"max_steps": 100},
        "truth": {"total_steps": 100, "steps_per_epoch": 10, "loss": [0.5, 1, 0.1], "speed": speed},
    }  # fmt: skip
    path.write_text("\n".join(map(json.dumps, [{"nodes": [{"count": 10, "cpu": 100}]}, one])))
    with pytest.raises(TooManySizes):
        bound_of(str(path), Options(), 0, programme=False)
    done = CliRunner().invoke(app, ["simulate", "--trace", str(path), "--policy", "fifo"])
    assert done.exit_code == 0, done.output
    assert "Not compared with what is possible: its jobs may have too many sizes" in done.output
    assert "--bound takes the time" in done.output


def test_a_bound_is_worked_out_once_for_runs_that_it_is_the_same_for(csv: Path) -> None:
    first = bound_of(str(csv), Options(), 0)
    assert bound_of(str(csv), Options(round_seconds=600.0, oracle=True), 3) is first
    assert bound_of(str(csv), Options(restart_seconds=5.0), 0) is not first
    drawn = [bound_of("paper", Options(), seed, programme=False) for seed in (0, 1)]
    assert drawn[0].mean_jct_seconds != drawn[1].mean_jct_seconds


@pytest.mark.parametrize(("words", "said"), [(["--load", "0"], "--load"), (["--set", "speed=1"], "unknown option")])
def test_what_cannot_be_used_is_refused(csv: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(app, ["bound", str(csv), *words])
    assert done.exit_code == 2
    assert said in done.output


def test_epochs_of_whole_seconds_have_no_bound(data: Path) -> None:
    workload = f"pollux:{data}/pollux/workloads/workload-6.csv"
    done = CliRunner().invoke(app, ["bound", workload, "--set", "pollux=true"])
    assert done.exit_code == 2
    assert "whole seconds" in done.output
