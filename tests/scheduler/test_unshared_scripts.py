"""Runs of a script whose workers share its work, half of it, or each do all of it, tell the next one its speed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.scheduler.builders import NOW, a_job, a_spec

from optimus_models.speed.scaling import ScalingCurve, predict_many
from optimus_scheduler.forecast.forecast import forecast
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.forecast.speed_fits import SpeedData, fit_speeds
from optimus_scheduler.model import Allocation, Architecture, EndedJob, Interval, Job, SpeedSample
from optimus_scheduler.settings import Settings

LAWS: dict[str, Callable[[int], float]] = {
    "shared": lambda workers: 6.5 * workers / (1.0 + 0.05 * (workers - 1)),
    "half": lambda workers: 6.5 * math.sqrt(workers),
    "unshared": lambda workers: 6.5,
}
KINDS = pytest.mark.parametrize("kind", list(LAWS))
Run = tuple[str, int, float]
"""Arguments, workers and steps per second of an ended run."""


def script(
    arguments: str,
    *runs: Run,
    measured: tuple[tuple[int, float], ...] = (),
    architecture: Architecture = Architecture.SCRIPT,
) -> Job:
    spec = a_spec(minimum=(1, 0), maximum=(8, 0))
    words = tuple(arguments.split())
    spec = replace(spec, architecture=architecture, family="train.py", arguments=words, global_batch_size=None)
    ended = tuple(
        EndedJob(f"run-{n}", "train.py", spec.project, None, speed_samples=(SpeedSample(workers, 0, speed, 50),),
                 architecture=architecture, arguments=tuple(options.split()))
        for n, (options, workers, speed) in enumerate(runs)
    )  # fmt: skip
    own = tuple(SpeedSample(workers, 0, speed, 50, NOW) for workers, speed in measured)
    return a_job("young", spec=spec, similar=ended, measured=own)


def outlook_of(job: Job) -> Outlook:
    return forecast(job, NOW, Settings())


def told(job: Job, workers: int) -> Interval:
    found = outlook_of(job).speeds.estimate(Allocation(workers, 0))
    return Interval(found.mean, found.low, found.high)


def holds(interval: Interval, speed: float) -> bool:
    return interval.low < speed < interval.high


@KINDS
@pytest.mark.parametrize("workers", [1, 2])
def test_runs_with_its_arguments_at_two_sizes_tell_both(kind: str, workers: int) -> None:
    runs = [("--e 2", size, LAWS[kind](size)) for size in (1, 2)]
    found = told(script("--e 2", *runs), workers)
    assert holds(found, LAWS[kind](workers))
    assert found.mean == pytest.approx(LAWS[kind](workers), rel=0.2)
    often = told(script("--e 2", *runs * 3), workers)
    assert often.mean == pytest.approx(LAWS[kind](workers), rel=0.1)


@KINDS
def test_runs_with_its_arguments_at_two_sizes_tell_a_larger_one(kind: str) -> None:
    runs = [("--e 2", size, LAWS[kind](size)) for size in (1, 2)]
    assert holds(told(script("--e 2", *runs), 4), LAWS[kind](4))


@KINDS
@pytest.mark.parametrize(("arguments", "workers"), [("--e 3", 1), ("--e 2", 2), ("--e 4", 1), ("--e 4", 2)])
def test_runs_with_different_arguments_at_two_sizes_leave_an_honest_doubt(
    kind: str, arguments: str, workers: int
) -> None:
    """Whether the arguments or the size made the difference is not known. Here it was the size."""
    found = told(script(arguments, ("--e 2", 1, LAWS[kind](1)), ("--e 3", 2, LAWS[kind](2))), workers)
    assert holds(found, LAWS[kind](workers))


def test_that_doubt_holds_where_the_arguments_made_the_difference() -> None:
    """Twice the work, on two workers that share it: as fast as half of it on one."""
    runs = [("--n 2", 1, 6.5), ("--n 4", 2, 6.5)]
    alone = told(script("--n 4", *runs), 1)
    assert holds(alone, 6.5 / 1.9)
    assert holds(alone, 6.5)
    assert 6.5 / 1.9 < alone.mean < 6.5


@KINDS
def test_an_argument_that_did_nothing_leaves_the_size(kind: str) -> None:
    """Six runs at one worker, all as fast, and one at two with a further value of the same option."""
    runs = [(f"--e {epochs}", 1, LAWS[kind](1)) for epochs in range(2, 8)]
    found = told(script("--e 8", *runs, ("--e 8", 2, LAWS[kind](2))), 1)
    assert holds(found, 6.5)
    assert found.mean == pytest.approx(6.5, rel=0.2)


def test_a_job_of_a_script_that_was_no_faster_is_believed_to_gain_nothing() -> None:
    """Once it has measured its own speed with one worker, too; decisions go by these speeds."""
    runs = [(f"--e {epochs}", size, 6.5) for epochs in range(2, 5) for size in (1, 2)]
    model = outlook_of(script("--e 9", *runs, measured=((1, 6.5),))).speeds.model
    assert isinstance(model, ScalingCurve)
    one, two, eight = predict_many([model], np.array([0, 0, 0]), np.array([1.0, 2.0, 8.0]))
    assert (one, two) == pytest.approx((6.5, 6.5), rel=0.1)
    assert eight < 2.0 * 6.5


@pytest.mark.parametrize("measured", [((1, 6.5),), ((1, 6.5), (2, 6.5))])
def test_jobs_of_our_own_workers_share_their_work(measured: tuple[tuple[int, float], ...]) -> None:
    """They divide each batch among them; what does not scale there is their exchange."""
    ring = fit_speeds(SpeedData.of(script("", measured=measured, architecture=Architecture.ALLREDUCE), Settings()))
    plain = ScalingCurve.fit(*zip(*measured, strict=True))
    sizes = np.array([1, 2, 8])
    for found, expected in zip(
        ring.model.predict_with_interval(sizes, sizes), plain.predict_with_interval(sizes, sizes), strict=True
    ):
        np.testing.assert_allclose(found, expected)


@pytest.mark.parametrize("arguments", ["--e 2", "--e 3"])
def test_larger_and_fewer_steps_of_more_processes_are_shared_work(arguments: str) -> None:
    """Each process has its own batch: two make as many steps a second, of which half as many are an epoch."""
    runs = [("--e 2", 1, 6.5), *[("--e 2", 2, 6.4)] * 3]
    job = script(arguments, *runs, measured=((1, 6.5),))
    by_epoch = [replace(each, steps_per_epoch=40.0 / n) for each, n in zip(job.similar, (1, 2, 2, 2), strict=True)]
    larger = replace(job, steps_per_epoch=40.0, similar=tuple(by_epoch))
    found = told(larger, 2)
    assert holds(found, 12.8)
    assert found.mean == pytest.approx(12.8, rel=0.1)
    same = replace(larger, similar=tuple(replace(each, steps_per_epoch=40.0) for each in job.similar))
    assert told(same, 2).mean == told(job, 2).mean == pytest.approx(6.5, rel=0.15), "each does all of the work"
