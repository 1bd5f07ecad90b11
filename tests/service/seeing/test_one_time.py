"""One answer tells of one time: a job that changes while its rows are read is read again."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.api.api_harness import Api
from tests.service.loop.loop_world import World

from optimus_service.api.jobs import explanation
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.store.events import Rounds

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
