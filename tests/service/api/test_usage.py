"""Who used how much in a month, and who may see it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import UTC, datetime

from tests.service.api.api_harness import Api, on_sqlite, problem
from tests.service.api.people import ADMINISTRATOR, add_token, add_user
from tests.service.store.store_builders import set_wanted

from optimus_scheduler.model import NOTHING, Allocation, Directive

Serve = Callable[..., AbstractContextManager[Api]]
NOVEMBER = datetime(2026, 11, 1, tzinfo=UTC).timestamp()
HOUR = 3600.0


def used(api: Api, project: str, owner: str, size: Allocation, hours: float) -> None:
    """A job of theirs that was given this size for some hours of November."""
    resources = {"cpu": 2.0, "gpus": 1}
    spec = {"name": "a", "project": project, "task": "m:f", "workers": {"resources": resources}}
    job_id = f"job-{project}-{owner}"
    api.repository.jobs.create(job_id, spec, "nonce", None, "hash", NOVEMBER, None, owner)
    set_wanted(api.repository, job_id, size, Directive.RUN, [], NOVEMBER)
    set_wanted(api.repository, job_id, NOTHING, Directive.RUN, [], NOVEMBER + hours * HOUR)


@on_sqlite
def test_usage_of_a_month_with_its_cost(serving: Serve) -> None:
    with serving(price_per_gpu_hour={"v100": 3.0}, price_per_core_hour=0.5) as api:
        used(api, "vision", "ada", Allocation(2, 0, "v100"), 10.0)
        used(api, "speech", "grace", Allocation(1, 0, "k80"), 4.0)
        found = api.get("/v1/usage?month=2026-11").json()
        speech, vision = found["lines"]
        assert vision == {
            "project": "vision",
            "owner": "ada",
            "gpu_type": "v100",
            "worker_hours": 20.0,
            "core_hours": 40.0,
            "gpu_hours": 20.0,
            "cost": 20.0 * 3.0 + 40.0 * 0.5,
        }
        assert (speech["gpu_hours"], speech["cost"]) == (4.0, 8.0 * 0.5)
        assert found["total"] == {"worker_hours": 24.0, "core_hours": 48.0, "gpu_hours": 24.0, "cost": 84.0}
        assert api.get("/v1/usage?month=2026-10").json()["lines"] == []


@on_sqlite
def test_without_prices_nothing_costs_anything_and_the_month_is_this_one(api: Api) -> None:
    used(api, "vision", "ada", Allocation(1, 0), 10.0)
    api.surroundings.clock.now = NOVEMBER + 20 * HOUR
    found = api.get("/v1/usage").json()
    assert (found["month"], found["until"], found["total"]["cost"]) == ("2026-11", "2026-11-01T20:00:00Z", None)
    assert [line["cost"] for line in found["lines"]] == [None]


@on_sqlite
def test_one_sees_the_projects_that_one_may_read(serving: Serve) -> None:
    with serving(token=ADMINISTRATOR) as api:
        used(api, "vision", "ada", Allocation(1, 0), 1.0)
        used(api, "vision", "grace", Allocation(1, 0), 2.0)
        used(api, "speech", "ada", Allocation(1, 0), 4.0)
        add_user(api, "ada", {"vision": "member", "speech": "viewer"})
        add_user(api, "eve", {"vision": "viewer"})
        add_user(api, "mallory")
        tokens = {name: add_token(api, name) for name in ("ada", "eve", "mallory")}
        tokens |= {"limited": add_token(api, "ada", "read", ["speech"]), "all": ADMINISTRATOR}
        hours = {
            name: api.get("/v1/usage?month=2026-11", token=token).json()["total"]["worker_hours"]
            for name, token in tokens.items()
        }
        assert hours == {"ada": 7.0, "eve": 3.0, "mallory": 0.0, "limited": 4.0, "all": 7.0}


@on_sqlite
def test_what_is_no_month_is_refused(api: Api) -> None:
    for wrong in ("2026", "2026-13", "2026-11-01", "november", ""):
        body = problem(api.get("/v1/usage", params={"month": wrong}), 422)
        assert body["errors"] == [{"field": "month", "message": "must be a month such as 2026-11"}]
