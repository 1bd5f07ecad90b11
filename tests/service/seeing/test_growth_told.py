"""What is told to give a job more, before it grows by itself."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.loop.loop_world import World
from tests.service.seeing.previews import preview_of

from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of


def advised(world: World, job_id: str) -> str:
    """What the service would answer now."""
    job, decisions = world.repository.jobs.get(job_id), world.repository.rounds.latest_decisions([job_id])
    advice = preview_of(world).what_gives_more(job_id, dict, only_named=False)
    assert advice is not None
    case = Case(
        job=job,
        decision=decisions.get(job_id),
        now=world.clock(),
        gives_more=advice.changes,
        loses_to=advice.loses_to,
        decided_now=advice.now,
        policy="optimus",
    )
    return explanation_of(case).what_would_change_it


BY_ITSELF = ("by itself", "a measurement of its speed", "the next round gives it", "is decided when")


@pytest.mark.parametrize("others", [[], ["job-2"]])
def test_a_job_that_grows_by_itself_was_told_that_it_may(world: World, others: list[str]) -> None:
    size: dict[str, Any] = {"min": 1, "max": 4}
    jobs, has, told = ["job-1", *others], dict[str, int](), dict[str, str]()
    for job_id in jobs:
        world.submit(job_id, workers=size, servers=size, convergence={"loss_decrease": {"below": 0.01}})
    grown = 0
    for _ in range(20):
        world.train(3.0)
        world.round()
        active = {each.id: each for each in world.repository.jobs.active()}
        for job_id in active:
            n_tasks = active[job_id].wanted.workers + active[job_id].wanted.servers
            if 0 < has.get(job_id, 0) < n_tasks:
                grown += 1
                ended = [f"the end of {each}" for each in jobs if each not in active]
                assert any(each in told[job_id] for each in (*BY_ITSELF, *ended)), told[job_id]
            has[job_id] = n_tasks
            if n_tasks:
                told[job_id] = advised(world, job_id)
    assert grown, "else nothing is shown"
