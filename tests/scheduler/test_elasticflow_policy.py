"""Progressive filling, and ElasticFlow by it: an admitted job is in time, without noise and stops."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, product

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.scheduler.builders import ALL_SIZES, GIB, NOW, a_job, a_spec, law, samples

from optimus_scheduler.allocate.allocate_with_quotas import allocate_with_quotas
from optimus_scheduler.allocate.baselines.elasticflow import ElasticFlowPolicy
from optimus_scheduler.allocate.deadline_budget import in_step
from optimus_scheduler.allocate.filling import SizedJob, beyond_reach
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.allocate.policy import AllocationInput
from optimus_scheduler.forecast.forecast import forecast_all
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import Allocation, Interval, Quota, Reason, Resources
from optimus_scheduler.settings import Settings

SETTINGS, SLOT, TASKS = Settings(), 60.0, 16
CAPACITY = Resources(float(TASKS), 64 * GIB)
(MEASURED,) = forecast_all([a_job("measured", measured=samples(law(), ALL_SIZES))], NOW, SETTINGS)
ALONE = MEASURED.speeds.at(Allocation(1, 1))


def due(name: str, *, takes: float, within: float, at: float = NOW, most: int = 8) -> Outlook:
    """A job that takes so many slots with a worker and a server, and is due `within` so many of its submission."""
    spec = replace(a_spec(maximum=(most, most)), deadline_at=at + within * SLOT)
    job = replace(a_job(name, spec=spec), submitted_at=at)
    return with_left(MEASURED._replace(job=job, stop_seconds=0.0), takes * SLOT * ALONE)


def with_left(outlook: Outlook, steps: float) -> Outlook:
    return outlook._replace(forecast=outlook.forecast._replace(remaining_steps=Interval(steps, steps, steps)))


class World:
    """Rounds at every slot; declined jobs leave, as in the published simulations."""

    def __init__(self) -> None:
        self.now, self.jobs = NOW, dict[str, Outlook]()
        self.admitted, self.declined, self.late = set[str](), set[str](), set[str]()

    def round(self, arriving: list[Outlook]) -> None:
        competing = (*self.jobs.values(), *arriving)
        inputs = AllocationInput(competing, CAPACITY, now=self.now)
        grants = ElasticFlowPolicy().allocate(inputs, SETTINGS)
        assert sum(grant.allocation.workers + grant.allocation.servers for grant in grants.values()) <= TASKS
        for one in competing:
            size = grants[one.id].allocation
            assert size.is_empty or (size.workers, size.servers) in ((1, 1), (2, 2), (4, 4), (8, 8))
            assert size.workers <= one.maximum.workers
            if grants[one.id].reason is Reason.DEADLINE_CANNOT_BE_MET:
                self.declined.add(one.id)
                continue
            self.admitted.add(one.id)
            self._advance(one, size)
        self.jobs = {job_id: one for job_id, one in self.jobs.items() if job_id not in self.declined}
        self.now += SLOT

    def _advance(self, one: Outlook, size: Allocation) -> None:
        assert one.forecast.remaining_steps is not None
        left, speed = one.forecast.remaining_steps.mean, one.speeds.at(size) if not size.is_empty else 0.0
        deadline = one.job.spec.deadline_at or 0.0
        if left <= speed * SLOT * (1 + 1e-9):
            self.jobs.pop(one.id, None)
            if self.now + left / speed > deadline + 1e-3:
                self.late.add(one.id)
            return
        if self.now + SLOT > deadline:
            self.late.add(one.id)
        started = one.job.started_at if size.is_empty else one.job.started_at or self.now
        job = replace(one.job, allocation=size, started_at=started, promised_at=one.job.promised_at or self.now)
        self.jobs[one.id] = with_left(one._replace(job=job), left - speed * SLOT)


jobs_drawn = st.lists(
    st.tuples(st.integers(0, 30), st.floats(0.2, 60.0), st.floats(0.2, 3.0), st.sampled_from((1, 2, 4, 8))),
    min_size=1,
    max_size=12,
)


def test_a_job_that_makes_others_late_is_declined() -> None:
    """Each needs four workers and four servers from now on, and there are sixteen cores."""
    world = World()
    world.round([due(name, takes=20.0, within=10.6) for name in ("first", "second")])
    world.round([due("third", takes=20.0, within=10.6, at=world.now)])
    assert world.admitted == {"first", "second"}
    assert world.declined == {"third"}


def test_what_is_left_goes_where_it_costs_least() -> None:
    """Beside a job that may have one worker only, another has the rest; a declined one gets a part of it, too."""
    small, large = due("small", takes=5.0, within=100.0, most=1), due("large", takes=50.0, within=1000.0)
    hopeless = due("hopeless", takes=50.0, within=1.0, most=2)
    inputs = AllocationInput((small, large, hopeless), CAPACITY, now=NOW)
    grants = ElasticFlowPolicy().allocate(inputs, SETTINGS)
    assert {job_id: grant.allocation.workers for job_id, grant in grants.items()} == {
        "small": 1,
        "large": 4,
        "hopeless": 2,
    }
    assert grants["hopeless"].reason is Reason.DEADLINE_CANNOT_BE_MET


@hypothesis_settings(max_examples=25, deadline=None)
@given(drawn=jobs_drawn)
def test_an_admitted_job_is_in_time(drawn: list[tuple[int, float, float, int]]) -> None:
    world, number = World(), 0
    while number <= 30 or world.jobs:
        arriving = [
            due(f"job-{place}", takes=takes, within=takes * tight, at=world.now, most=most)
            for place, (slot, takes, tight, most) in enumerate(drawn)
            if slot == number
        ]
        world.round(arriving)
        number += 1
        assert number < 5000
    assert world.admitted.isdisjoint(world.declined)
    assert len(world.admitted) + len(world.declined) == len(drawn)
    assert not world.late, (world.late, drawn)


# --- under other policies: which deadlines are given up ---------------------------------------------------------------


def whole(name: str, *, takes: int, within: int, promised: bool = False) -> SizedJob:
    """A job that has the whole cluster while it runs."""
    size = (TASKS // 2, TASKS // 2)
    job = replace(a_job(name, spec=a_spec(minimum=size, maximum=size)), promised_at=NOW if promised else None)
    job = replace(job, spec=replace(job.spec, deadline_at=NOW + within * SLOT))
    one = with_left(MEASURED._replace(job=job), takes * SLOT * MEASURED.speeds.at(Allocation(*size)))
    return SizedJob(one, [one.minimum], CAPACITY, NOW)


def most_in_time(jobs: list[tuple[int, int]]) -> int:
    """By trying every set of jobs, one after the other by their deadlines."""
    best = 0
    for chosen in product((False, True), repeat=len(jobs)):
        kept = sorted((within, takes) for (takes, within), take in zip(jobs, chosen, strict=True) if take)
        ends = accumulate(takes for _, takes in kept)
        if all(end <= within for end, (within, _) in zip(ends, kept, strict=True)):
            best = max(best, len(kept))
    return best


@hypothesis_settings(max_examples=60, deadline=None)
@given(drawn=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 14)), min_size=1, max_size=7))
def test_one_after_the_other_as_few_as_possible_are_given_up(drawn: list[tuple[int, int]]) -> None:
    jobs = [whole(f"job-{place}", takes=takes, within=within) for place, (takes, within) in enumerate(drawn)]
    assert len(jobs) - len(beyond_reach(jobs, CAPACITY).given_up) == most_in_time(drawn)


def test_a_promised_deadline_is_not_given_up() -> None:
    dear, cheap = whole("dear", takes=8, within=9), [whole(f"cheap-{n}", takes=2, within=9 + n) for n in range(3)]
    assert beyond_reach([dear, *cheap], CAPACITY).given_up == {"dear"}
    promised = whole("dear", takes=8, within=9, promised=True)
    assert beyond_reach([promised, *cheap], CAPACITY).given_up == {"cheap-0", "cheap-2"}, "8 slots of 11 are taken"


@pytest.mark.parametrize("promised", [True, False])
def test_a_promised_job_that_cannot_wait_any_longer_comes_first(promised: bool) -> None:
    """There is room for one; with its upper bound the tight one would be late even now."""
    tight, other = due("tight", takes=8.0, within=9.0, most=1), due("other", takes=2.0, within=8.5, most=1)
    left = Interval(8 * SLOT * ALONE, 7 * SLOT * ALONE, 10 * SLOT * ALONE)
    job = replace(tight.job, promised_at=NOW if promised else None)
    tight = tight._replace(job=job, forecast=tight.forecast._replace(remaining_steps=left))
    inputs = AllocationInput((tight, other), Resources(2.0, 64 * GIB))
    grants = allocate_with_quotas(inputs, policy_named("fifo"), SETTINGS, now=NOW)
    assert not grants["tight" if promised else "other"].allocation.is_empty


@pytest.mark.parametrize("policy", ["optimus", "fifo"])
def test_a_deadline_that_keeps_several_others_from_theirs_is_given_up(policy: str) -> None:
    """The dear one, with the earliest deadline, needs half of the cluster until then; the cheap ones cannot wait."""
    dear = due("dear", takes=40.0, within=21.0, most=4)
    cheap = [due(f"cheap-{place}", takes=20.0, within=21.5, most=1) for place in range(6)]
    inputs = AllocationInput((dear, *cheap), CAPACITY)
    grants = allocate_with_quotas(inputs, policy_named(policy), SETTINGS, now=NOW)
    assert all(grants[one.id].allocation.workers == 1 for one in cheap)
    assert grants["dear"].allocation.workers <= 2
    assert "beside what comes first" in (grants["dear"].note or "")


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_it_is_given_up_within_what_its_project_may_have(share: float) -> None:
    """On the whole cluster all are in time; on the half that their project never exceeds the dear one is not."""
    dear = due("dear", takes=40.0, within=21.0, most=4)
    cheap = [due(f"cheap-{place}", takes=20.0, within=21.5, most=1) for place in range(4)]
    inputs = AllocationInput((dear, *cheap), CAPACITY)
    quotas = [Quota(dear.job.spec.project, share=share, may_borrow=False)]
    grants = allocate_with_quotas(inputs, policy_named("optimus"), SETTINGS, now=NOW, quotas=quotas)
    if share == 1.0:
        assert all(grants[one.id].reason is Reason.MEETING_DEADLINE for one in (dear, *cheap))
        return
    assert all(grants[one.id].allocation.workers == 1 for one in cheap)
    assert grants["dear"].allocation.is_empty
    assert "beside what comes first" in (grants["dear"].note or "")


def test_a_job_that_more_room_would_not_help_begins_before_earlier_deadlines() -> None:
    """It needs one worker nearly all the time until its deadline; nine others, due before, can wait and use more."""
    narrow = due("narrow", takes=100.0, within=105.0, most=1)
    wide = [due(f"wide-{place}", takes=20.0, within=60.0, most=4) for place in range(9)]
    jobs = [SizedJob(one, in_step(one), CAPACITY, NOW) for one in (*wide, narrow)]
    assert beyond_reach(jobs, CAPACITY).given_up == frozenset()
    grants = allocate_with_quotas(AllocationInput((*wide, narrow), CAPACITY), policy_named("fifo"), SETTINGS, now=NOW)
    assert grants["narrow"].allocation == Allocation(1, 1)


@pytest.mark.parametrize(("sooner_by", "passes"), [(2.0, False), (8.0, True)])
def test_a_job_is_paused_for_one_that_has_to_begin_much_sooner_only(sooner_by: float, passes: bool) -> None:
    """There is room for two of three jobs; five minutes are `least_run_seconds`."""
    first, second, other = (due(name, takes=10.0, within=60.0, most=1) for name in ("first", "second", "waits"))
    ran = SETTINGS.least_run_seconds  # who has just got tasks is not paused for one that can wait
    running = [
        one._replace(job=replace(one.job, allocation=Allocation(1, 1)), allocated_seconds=ran)
        for one in (first, second)
    ]
    waiting = with_left(other, (10.0 + sooner_by) * SLOT * ALONE)
    inputs = AllocationInput((*running, waiting), Resources(4.0, 64 * GIB))
    grants = allocate_with_quotas(inputs, policy_named("fifo"), SETTINGS, now=NOW)
    assert sum(not grant.allocation.is_empty for grant in grants.values()) == 2
    assert grants["waits"].allocation.is_empty is not passes
