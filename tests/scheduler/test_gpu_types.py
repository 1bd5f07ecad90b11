"""Which GPU type a job runs on, and what changing it means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.scheduler.builders import ALL_SIZES, NOW, a_job
from tests.scheduler.constrained_worlds import FACTOR, PRICES, gpu_node, gpu_spec, measured_on, next_round, trained

from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.forecast.gpu_types import (
    accepted_types,
    has_a_choice,
    on_first_types,
    on_the_only_types,
    on_type,
    relative_speeds,
    types_of_each,
)
from optimus_scheduler.model import (
    Allocation,
    ConvergenceRule,
    Directive,
    EndedJob,
    Job,
    Node,
    Reason,
    Role,
    Snapshot,
    StartTask,
)
from optimus_scheduler.round import MOST_PASSES, plan
from optimus_scheduler.settings import Settings

OPTIMUS = policy_named("optimus")
MIXED = (gpu_node("slow", {"k80": 4}), gpu_node("fast", {"v100": 4}))
BOTH = gpu_spec("k80", "v100", maximum=4)


def types_of(world: Snapshot) -> dict[str, str | None]:
    return {job.id: job.allocation.gpu_type for job in world.jobs}


def on_chosen_types(jobs: Sequence[Job], nodes: Sequence[Node], now: float, settings: Settings) -> tuple[Job, ...]:
    """The jobs with their workers on one GPU type each, as a round chooses them before it forecasts."""
    choices = types_of_each(jobs, nodes)
    if not has_a_choice(choices):
        return on_the_only_types(jobs, choices)
    return on_first_types(jobs, nodes, choices, relative_speeds(jobs, settings), now, settings)


def chosen(jobs: list[Job], nodes: tuple[Node, ...] = MIXED, settings: Settings | None = None) -> dict[str, str | None]:
    typed = on_chosen_types(jobs, nodes, NOW, settings or Settings())
    return {job.id: job.spec.gpu_type for job in typed}


# --- what is accepted ------------------------------------------------------------------------------------------------


def test_any_gpu_is_any_that_the_cluster_has() -> None:
    assert accepted_types(gpu_spec(), MIXED) == ("k80", "v100")
    assert accepted_types(gpu_spec(named="v100"), MIXED) == ("v100",)
    assert accepted_types(gpu_spec("t4", "v100", "k80"), MIXED) == ("v100", "k80")


def test_a_type_that_is_not_there_stays_named() -> None:
    assert accepted_types(gpu_spec(named="h100"), MIXED) == ("h100",)
    decision = plan(Snapshot(NOW, MIXED, (a_job("a", spec=gpu_spec(named="h100")),)), OPTIMUS).decisions[0]
    assert decision.reason is Reason.NO_FEASIBLE_NODE


def test_a_worker_has_to_fit_beside_the_gpus() -> None:
    small = (gpu_node("slow", {"k80": 4}), gpu_node("fast", {"v100": 4}, cpu=0.5))
    assert accepted_types(gpu_spec(), small) == ("k80",)


def test_jobs_that_name_one_type_are_not_touched() -> None:
    job = a_job("a", spec=gpu_spec(named="v100"))
    assert on_chosen_types([job], MIXED, NOW, Settings())[0] is job


# --- the choice ------------------------------------------------------------------------------------------------------


def test_the_first_job_takes_the_faster_type() -> None:
    """Of a type that nobody measured, the data sheet is known."""
    assert chosen([a_job("a", spec=BOTH)]) == {"a": "v100"}


def test_jobs_spread_over_types_as_they_fill() -> None:
    jobs = [a_job(f"j{i}", spec=BOTH, submitted_at=NOW - 50 + i) for i in range(12)]
    kinds = list(chosen(jobs).values())
    assert kinds[0] == "v100"
    assert {kind: kinds.count(kind) for kind in ("k80", "v100")}["k80"] >= 2


def test_an_idle_type_is_better_than_waiting() -> None:
    """The faster type would be the choice, but those who are there will not leave."""
    held = gpu_spec(named="v100", maximum=1)
    running = [a_job(f"r{i}", has=(1, 1), nodes="fast", spec=held) for i in range(4)]
    running = [replace(job, allocation=Allocation(1, 1, "v100")) for job in running]
    after, _ = next_round(Snapshot(NOW, MIXED, (*running, a_job("new", spec=BOTH))), OPTIMUS)
    assert types_of(after)["new"] == "k80"


def test_price_decides_where_it_is_to() -> None:
    """Per dollar a k80 beats a v100 for a job that is only three times as fast there."""
    slow_scaling = measured_on("k80", [(1, 1)])
    fast = tuple(
        replace(sample, gpu_type="v100", steps_per_second=3 * sample.steps_per_second) for sample in slow_scaling
    )
    job = a_job("a", spec=BOTH, measured=(*slow_scaling, *fast))
    assert chosen([job]) == {"a": "v100"}
    assert chosen([job], settings=replace(PRICES, gpu_type_by="price")) == {"a": "k80"}


def test_what_other_jobs_of_the_family_measured_counts() -> None:
    """This family is no faster on the newer type, whatever the data sheet says."""
    family = gpu_spec("k80", "v100", maximum=4, family="m:rnn")
    known = measured_on("k80", [(1, 1)])
    same = (*known, replace(known[0], gpu_type="v100"))
    known_jobs = [a_job(f"known-{i}", spec=replace(family, gpu_types=("k80",)), measured=same) for i in range(6)]
    spread = [a_job(f"new-{i}", spec=family, submitted_at=NOW - 10 + i) for i in range(2)]
    crowd = [
        replace(a_job(f"v{i}", has=(1, 1), spec=gpu_spec(named="v100")), allocation=Allocation(1, 1, "v100"))
        for i in (0, 1)
    ]
    kinds = chosen([*known_jobs, *spread, *crowd], (gpu_node("slow", {"k80": 40}), gpu_node("fast", {"v100": 4})))
    assert (kinds["new-0"], kinds["new-1"]) == ("k80", "k80")


# --- a running job ---------------------------------------------------------------------------------------------------


def running_on(kind: str, name: str = "a", trained_seconds: float = 3000.0, **fields: object) -> Job:
    node = {"k80": "slow", "v100": "fast"}[kind]
    job = a_job(name, has=(2, 1), nodes=node, spec=BOTH, measured=measured_on(kind, ALL_SIZES))
    job = replace(job, allocation=Allocation(2, 1, kind), started_at=NOW - trained_seconds)
    return replace(job, **fields)  # type: ignore[arg-type]


def test_a_running_job_moves_to_a_much_faster_type_and_is_charged() -> None:
    world = Snapshot(NOW, MIXED, (running_on("k80"),))
    after, outcome = next_round(world, OPTIMUS)
    assert types_of(after) == {"a": "v100"}
    started = {
        a.task.key.rank: a.task for a in outcome.actions if isinstance(a, StartTask) and a.task.key.role is Role.WORKER
    }
    assert all(task.node == "fast" for task in started.values())
    assert started[0].key.incarnation == 1, "a worker on another GPU is another process"
    assert outcome.decisions[0].message.startswith("Moves from 2 workers and 1 server on k80 to ")
    server = next(placed for placed in after.jobs[0].wanted_tasks if placed.key.role is Role.SERVER)
    assert server.key.incarnation == 0, "servers stay"


@pytest.mark.parametrize(
    "job",
    [
        running_on("k80", trained_seconds=3.0),
        running_on("k80", rescale_seconds=(900.0,) * 12),
        running_on("k80", allocated_at=NOW - 1.0),
        running_on("k80", directive=Directive.FINISH),
    ],
    ids=["has just begun", "a change is dear", "has just changed", "is being finished"],
)
def test_a_running_job_stays_where_moving_does_not_pay(job: Job) -> None:
    after, _ = next_round(Snapshot(NOW, MIXED, (job,)), OPTIMUS)
    assert types_of(after) == {"a": "k80"}


def test_a_job_that_has_converged_stays_where_it_is() -> None:
    job = running_on("k80", spec=replace(BOTH, convergence=ConvergenceRule(max_seconds=60.0)))
    after, outcome = next_round(Snapshot(NOW, MIXED, (job,)), OPTIMUS)
    assert (types_of(after), outcome.decisions[0].reason) == ({"a": "k80"}, Reason.LIMIT_REACHED)


def test_a_job_leaves_a_type_that_is_gone() -> None:
    after, _ = next_round(Snapshot(NOW, MIXED[1:], (running_on("k80"),)), OPTIMUS)
    assert types_of(after) == {"a": "v100"}


def test_moving_ends() -> None:
    world = Snapshot(NOW, MIXED, tuple(running_on("k80", f"j{i}") for i in (0,)))
    for _ in range(4):
        world, _ = next_round(world, OPTIMUS)
        world = trained(world, 120.0)
    settled = types_of(world)
    for _ in range(6):
        world, _ = next_round(world, OPTIMUS)
        world = trained(world, 120.0)
        assert types_of(world) == settled


def test_a_job_is_placed_on_another_type_when_the_chosen_one_has_no_cores_left() -> None:
    hog = replace(
        a_job("hog", has=(1, 1), nodes="fast", spec=replace(gpu_spec(named="v100", maximum=1))),
        allocation=Allocation(1, 1, "v100"),
    )
    hog = replace(
        hog, spec=replace(hog.spec, server=replace(hog.spec.server, resources=gpu_node("", {}, 15.0).capacity))
    )
    tight = (MIXED[0], gpu_node("fast", {"v100": 4}, cpu=16.0))
    after, _ = next_round(Snapshot(NOW, tight, (hog, a_job("new", spec=BOTH))), OPTIMUS)
    assert types_of(after)["new"] == "k80"


def test_a_round_does_not_plan_without_end() -> None:
    """Each of very many types has GPUs, but no cores beside them."""
    kinds = [f"type-{number:02d}" for number in range(2 * MOST_PASSES)]
    hogs = []
    for kind in kinds:
        spec = gpu_spec(named=kind, maximum=1)
        spec = replace(spec, server=replace(spec.server, resources=gpu_node("", {}, 15.0).capacity))
        hog = a_job(f"hog-{kind}", has=(1, 1), nodes=kind, spec=spec)
        hogs.append(replace(hog, allocation=Allocation(1, 1, kind)))
    nodes = tuple(gpu_node(kind, {kind: 4}, cpu=16.0) for kind in kinds)
    passes = 0

    @contextmanager
    def timer(step: str) -> Iterator[None]:
        nonlocal passes
        passes += step == "place"
        yield

    waiting = a_job("new", spec=gpu_spec(*kinds, maximum=4))
    planned = plan(Snapshot(NOW, nodes, (*hogs, waiting)), OPTIMUS, timer=timer)
    assert passes == MOST_PASSES + 1, "the last one lends what has no place"
    assert {decision.job_id for decision in planned.decisions} == {"new", *(hog.id for hog in hogs)}


def test_speeds_are_told_for_the_type_that_the_job_will_be_on() -> None:
    reported = running_on("k80")
    job = on_type(reported, "v100", relative_speeds([reported], Settings()))
    assert job.spec.gpu_type == "v100"
    before = {(s.workers, s.servers): s.steps_per_second for s in running_on("k80").speed_samples}
    ratios = [s.steps_per_second / before[s.workers, s.servers] for s in job.speed_samples]
    assert min(ratios) == pytest.approx(max(ratios))
    assert 2.0 < ratios[0] < 2 * FACTOR["v100"]


def test_what_ended_jobs_measured_is_told_for_that_type_as_well() -> None:
    """One worker on a slow type and four on a fast one say how a job scales only if types are told apart."""
    fast = measured_on("v100", [(4, 1)])
    ended = EndedJob("before", "m:rnn", "default", 100.0, speed_samples=(*measured_on("k80", [(1, 1)]), *fast))
    family = gpu_spec("k80", "v100", maximum=4, family="m:rnn")
    reported = a_job(
        "a", spec=family, similar=(ended,), measured=(*measured_on("k80", [(1, 1)]), *measured_on("v100", [(1, 1)]))
    )
    speeds = relative_speeds([reported], Settings())
    for kind in ("k80", "v100"):
        (similar,) = on_type(reported, kind, speeds).similar
        assert {sample.gpu_type for sample in similar.speed_samples} == {kind}
        one, four = (sample.steps_per_second for sample in similar.speed_samples)
        assert four / one < 4.5, "not the seven times that the type is faster as well"
        assert similar.id != ended.id
    assert on_type(reported, "k80", speeds).similar == on_type(reported, "k80", speeds).similar


def test_ended_jobs_of_the_same_type_are_told_as_they_were() -> None:
    ended = EndedJob("before", "m:rnn", "default", 100.0, speed_samples=measured_on("k80", [(1, 1), (2, 1)]))
    reported = a_job("a", spec=gpu_spec("k80", "v100", family="m:rnn"), similar=(ended,))
    assert on_type(reported, "k80", relative_speeds([reported], Settings())).similar is reported.similar
