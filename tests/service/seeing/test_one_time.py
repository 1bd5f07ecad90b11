"""One answer tells of one time: a job that changes while its rows are read is read again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.api.api_harness import Api
from tests.service.loop.loop_world import World

from optimus_scheduler.what_if import NEXT_ROUND, Advice
from optimus_service.api.jobs import explanation
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.store.events import Rounds
from optimus_service.store.jobs.jobs import Jobs

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
ONE: dict[str, Any] = {"workers": {"min": 1, "max": 1}, "servers": {"min": 1, "max": 1}}


@once
def test_an_explanation_has_the_memberships_of_the_job_that_it_explains(
    planning: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were read before what would give it more was tried, which takes a while, and the job after it."""
    world.submit(**ONE)
    world.round()
    preview, cases = planning.services.preview, list[Case]()
    assert preview is not None
    tried = preview.what_gives_more

    def begins_meanwhile(*args: Any, **kwargs: Any) -> Any:
        world.train(0)
        return tried(*args, **kwargs)

    def told(case: Case) -> Any:
        cases.append(case)
        return explanation_of(case)

    monkeypatch.setattr(preview, "what_gives_more", begins_meanwhile)
    monkeypatch.setattr(explanation, "explanation_of", told)
    assert planning.get("/v1/jobs/job-1/explanation").json()["state"] == "running"
    (case,) = cases
    assert [each.epoch for each in case.memberships] == [case.job.membership_epoch] == [1]


def a_job_that_waits(world: World) -> None:
    world.submit("runs", workers={"min": 6, "max": 6}, servers={"min": 2, "max": 2})
    world.round()
    world.submit("waits", **ONE)
    world.round()


@once
def test_what_waits_is_read_once_for_one_explanation(
    planning: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_job_that_waits(world)
    reads, read = list[int](), Jobs.active

    def counted(jobs: Jobs, *args: Any) -> Any:
        reads.append(1)
        return read(jobs, *args)

    monkeypatch.setattr(Jobs, "active", counted)
    assert "the end of runs" in planning.get("/v1/jobs/waits/explanation").json()["what_would_change_it"]
    assert len(reads) == 1


@once
@pytest.mark.parametrize("rounds", [1, 99])
def test_no_round_comes_between_what_an_explanation_tells_and_its_advice(
    planning: Api, world: World, monkeypatch: pytest.MonkeyPatch, rounds: int
) -> None:
    """Where rounds come faster than one can be planned, the next one is not told to start the job."""
    a_job_that_waits(world)
    preview, planned, cases = planning.services.preview, list[int](), list[Case]()
    assert preview is not None

    def a_round_comes(*_: Any, **__: Any) -> Advice:
        planned.append(1)
        if len(planned) <= rounds:
            world.round()
        return Advice((NEXT_ROUND,))

    def told(case: Case) -> Any:
        cases.append(case)
        return explanation_of(case)

    monkeypatch.setattr(preview, "what_gives_more", a_round_comes)
    monkeypatch.setattr(explanation, "explanation_of", told)
    planning.get("/v1/jobs/waits/explanation")
    (case,) = cases
    assert (len(planned), case.gives_more) == ((2, (NEXT_ROUND,)) if rounds == 1 else (3, None))
    newest = world.repository.rounds.page(limit=1).items[0].id
    assert (case.newest_round == newest) == (rounds == 1)


@once
def test_predictions_of_a_job_that_ends_while_they_are_read_tell_its_end(
    planning: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.submit(**ONE, convergence={"max_steps": 500})
    world.live_until("it trains", lambda: world.repository.jobs.get("job-1").step > 20)
    read = Rounds.decisions

    def ends_meanwhile(rounds: Rounds, *args: Any, **kwargs: Any) -> Any:
        found, job = read(rounds, *args, **kwargs), world.repository.jobs.get("job-1")
        if not job.state.is_final:
            world._finish(job, world.coordinators["job-1"])
        return found

    monkeypatch.setattr(Rounds, "decisions", ends_meanwhile)
    told = planning.get("/v1/jobs/job-1/predictions").json()
    assert (told["outcome"] is not None, told["remaining_seconds"]) == (True, None)
