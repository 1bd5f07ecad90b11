"""What errors of predicted times come from (`benchmarks.attribution`)."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import pytest
from benchmarks.attribution import PARTS, Place, WatchedReplay, seconds_along
from hypothesis import given
from hypothesis import strategies as st

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.options import Options
from optimus_simulator.outcome.outcome import Outcome
from optimus_simulator.replay import Replay
from optimus_simulator.shown_predictions import IN_LIFE
from optimus_simulator.traces.paper import paper_workload

stretches = st.lists(st.tuples(st.integers(1, 600), st.integers(1, 500)), min_size=2, max_size=8)


@given(drawn=stretches, parts=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)))
def test_more_steps_take_longer_and_all_take_until_the_end(
    drawn: list[tuple[int, int]], parts: tuple[float, float]
) -> None:
    times, steps = (list(accumulate(each)) for each in zip(*drawn, strict=True))
    course = [Place(float(at), float(step)) for at, step in zip(times, steps, strict=True)]
    begin, end = course[0], course[-1]
    few, many = sorted(part * (end.step - begin.step) for part in parts)
    assert seconds_along(course, begin.at, few) <= seconds_along(course, begin.at, many) + 1e-9
    assert seconds_along(course, begin.at, end.step - begin.step) == pytest.approx(end.at - begin.at)


def test_beyond_the_end_it_goes_on_at_its_last_speed() -> None:
    course = [Place(0.0, 0.0), Place(10.0, 10.0), Place(20.0, 60.0), Place(25.0, 60.0)]
    assert seconds_along(course, 10.0, 50.0 + 5.0) == pytest.approx(15.0 + 1.0)


JOBS = 4


def watched(replay: type[Replay]) -> tuple[Replay, Outcome]:
    trace = paper_workload(0)
    trace = replace(trace, jobs=trace.jobs[:JOBS])
    found = replay(trace, policy_named("optimus"), Options(promises=True), seed=0)
    return found, found.run()


def test_watching_changes_nothing_and_the_true_course_and_steps_leave_little_error() -> None:
    replay, outcome = watched(WatchedReplay)
    assert isinstance(replay, WatchedReplay)
    assert watched(Replay)[1] == outcome
    rows = replay.attribution()
    for part in PARTS:
        judged = [one for job in outcome.jobs for one in job.predictions if (one.kind, one.part) == (IN_LIFE, part)]
        said = [one for one in judged if one.prediction.uncorrected is not None]
        errors = {}
        for told in ("nothing", "course and steps"):
            those = [row for row in rows if (row["part"], row["told"]) == (part, told)]
            assert sum(row["jobs"] for row in those) == len(said)
            errors[told] = sum(row["jobs"] * row["mean_log_error"] for row in those)
        assert errors["course and steps"] < errors["nothing"] / 2
