"""Runs that their rule ended are lower bounds of what jobs without that rule take."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.test_alike_runs import a_script, end_of, silent

from optimus_scheduler.forecast.alike_runs import steps_of_alike_runs
from optimus_scheduler.forecast.censoring import Length, ended_by, is_whole, quantiles, weighed
from optimus_scheduler.model import COMMAND_ENDS, ConvergenceRule, EndedJob, Interval, MetricTarget

OPEN = ConvergenceRule()
ARGUMENTS = ("--seed", "1")
LENGTHS = st.lists(st.builds(Length, st.floats(0.0, 10.0), st.booleans()), min_size=1, max_size=16)


def run(
    name: str, steps: int, rule: ConvergenceRule = OPEN, by: str | None = None, arguments: tuple[str, ...] = ARGUMENTS
) -> EndedJob:
    return EndedJob(
        name, "t", "default", None, arguments=arguments, total_steps=steps, rule=rule, ended_by=by, losses=(1.0,)
    )


def told(*runs: EndedJob, rule: ConvergenceRule = OPEN) -> Interval | None:
    job = a_script(*runs)
    return steps_of_alike_runs(replace(job, spec=replace(job.spec, convergence=rule)), None)


TARGET = ConvergenceRule(target_loss=0.5)
RULES = {
    "target_loss": TARGET,
    "target_metric": ConvergenceRule(target_metric=MetricTarget("accuracy", at_least=0.9)),
    "loss_decrease": ConvergenceRule(loss_decrease=0.01),
    "max_steps": ConvergenceRule(max_steps=48),
    "max_seconds": ConvergenceRule(max_seconds=24.0),
    "max_cost": ConvergenceRule(max_cost=1.0),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "by an earlier release"])
def test_a_run_that_a_rule_ended_does_not_shorten_a_job_without_it(name: str, is_kept: bool) -> None:
    whole, cut = run("whole", 80, by=COMMAND_ENDS), run("cut", 48, RULES[name], name if is_kept else None)
    assert told(whole, cut) == told(whole) == pytest.approx(Interval(80.0, 40.0, 160.0))
    assert told(cut) is None, "it takes longer than that, and nobody knows how much"
    assert ended_by(cut) == (name,)
    assert is_whole(cut, RULES[name])
    assert not is_whole(cut, OPEN)


def test_a_run_tells_the_whole_of_jobs_that_the_same_limit_ends() -> None:
    rule = ConvergenceRule(max_seconds=24.0)
    cut = run("cut", 48, rule, "max_seconds")
    for other in (rule, replace(rule, max_epochs=90.0)):
        found = told(cut, rule=other)
        assert found is not None
        assert found.mean == pytest.approx(48.0)
    assert told(cut, rule=ConvergenceRule(max_seconds=60.0)) is None
    assert told(run("a", 48, TARGET, "target_loss"), rule=TARGET) == pytest.approx(Interval(48.0, 24.0, 96.0))


def test_a_command_that_ended_before_its_rule_held_is_a_whole_run() -> None:
    assert told(run("whole", 80, TARGET, COMMAND_ENDS)) == pytest.approx(Interval(80.0, 40.0, 160.0))


def test_a_rule_of_which_another_part_ended_a_run_cuts_it() -> None:
    rule = ConvergenceRule(target_loss=0.5, max_seconds=24.0)
    assert told(run("cut", 48, rule, "max_seconds"), rule=TARGET) is None
    assert told(run("done", 48, rule, "target_loss"), rule=TARGET) is not None


def test_a_longer_run_that_was_cut_lengthens_what_is_told() -> None:
    whole, cut = run("whole", 80, by=COMMAND_ENDS), run("cut", 120, TARGET, "target_loss")
    found = told(whole, cut)
    assert found is not None
    assert 80.0 < found.mean <= 120.0 < found.high


def test_a_job_takes_longer_than_the_same_one_that_was_cut_whatever_others_took() -> None:
    """The only run with its arguments was ended by a target at 48; those with others took 20."""
    others = [run(f"other-{n}", 20, by=COMMAND_ENDS, arguments=("--seed", f"{n}")) for n in (2, 3)]
    alone, found = told(*others), told(*others, run("cut", 48, TARGET, "target_loss"))
    assert alone is not None
    assert found is not None
    assert alone.mean == pytest.approx(20.0, rel=0.1)
    assert 48.0 < found.low < found.mean < found.high


def test_silent_runs_that_a_limit_ended_say_only_that_it_takes_longer() -> None:
    rule = ConvergenceRule(max_seconds=10.0)
    cut = [replace(silent(f"cut-{n}", 10.5), rule=rule, ended_by="max_seconds") for n in range(5)]
    assert end_of(a_script(*cut)) is None
    found, alone = end_of(a_script(silent("whole", 40.0), *cut)), end_of(a_script(silent("whole", 40.0)))
    assert found is not None
    assert alone is not None
    assert found == pytest.approx(alone)
    ends = a_script(*cut)
    assert end_of(replace(ends, spec=replace(ends.spec, convergence=rule))) is not None


@given(LENGTHS)
def test_each_run_counts_once_and_none_that_was_cut_for_its_own_length_but_the_longest(lengths: list[Length]) -> None:
    found = weighed(lengths)
    assert sum(found.weights) == pytest.approx(len(lengths))
    assert list(found.logs) == sorted(found.logs)
    longest = max(each.log for each in lengths)
    assert found.logs[-1] == longest
    whole = sorted(each.log for each in lengths if each.is_whole)
    assert list(found.logs[:-1] if found.is_open else found.logs) == whole


@given(LENGTHS)
def test_cuts_never_shorten_what_whole_runs_tell(lengths: list[Length]) -> None:
    whole = [each for each in lengths if each.is_whole]
    alike = weighed([Length(each.log) for each in lengths])
    parts = (0.1, 0.5, 0.9)
    assert quantiles(alike, parts) == pytest.approx(np.quantile([each.log for each in lengths], parts).tolist())
    assert sorted(quantiles(weighed(lengths), parts)) == quantiles(weighed(lengths), parts)
    if whole:
        before, after = weighed(whole), weighed(lengths)
        means = [float(np.average(each.logs, weights=each.weights)) for each in (before, after)]
        assert means[1] >= min(each.log for each in whole) - 1e-9
        shorter = weighed([*whole, *(Length(min(w.log for w in whole) - 1.0, False) for _ in range(3))])
        assert shorter.logs == before.logs
        assert math.isclose(float(np.average(shorter.logs, weights=shorter.weights)), means[0], abs_tol=1e-9)
