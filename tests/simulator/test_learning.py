"""Jobs that ended in a simulation teach the scheduler about later ones of their family."""

from __future__ import annotations

from typing import Any

import pytest

from optimus_scheduler import round as cycle
from optimus_scheduler.allocate.policies import policy_named
from optimus_scheduler.model import Job
from optimus_scheduler.settings import Settings
from optimus_simulator import replay as replay_module
from optimus_simulator.options import Options
from optimus_simulator.replay import Replay
from optimus_simulator.traces.paper import paper_workload


def seen_jobs(monkeypatch: pytest.MonkeyPatch, options: Options) -> list[Job]:
    """All jobs as all rounds saw them."""
    seen: list[Job] = []

    def watched(snapshot: Any, *args: Any, **kwargs: Any) -> Any:
        seen.extend(snapshot.jobs)
        return cycle.plan(snapshot, *args, **kwargs)

    monkeypatch.setattr(replay_module, "plan", watched)
    Replay(paper_workload(0, jobs=12), policy_named("optimus"), options).run()
    return seen


def test_later_jobs_know_ended_ones_of_their_family_only(monkeypatch: pytest.MonkeyPatch) -> None:
    informed = [job for job in seen_jobs(monkeypatch, Options()) if job.similar]
    assert informed
    assert all(ended.task == job.spec.family for job in informed for ended in job.similar)
    assert all(ended.losses and ended.speed_samples for job in informed for ended in job.similar)


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(job.similar for job in seen_jobs(monkeypatch, Options(learn_from_finished_jobs=False)))


def test_money_is_spent_while_tasks_are_held() -> None:
    prices = Settings(price_per_core_hour=3600.0)  # 1 a second and core
    spent: dict[str, float] = {}

    def note(_ended: int, _now: float) -> None:
        spent.update({job_id: job.spent for job_id, job in replay.active.items()})

    replay = Replay(paper_workload(0, jobs=2), policy_named("fifo"), settings=prices, progress=note)
    for record in replay.run().jobs:
        # FIFO holds eight tasks of 2.5 cores from start to end; the last look is up to a minute before that.
        seconds = record.finished_at - record.started_at
        assert 20.0 * (seconds - 61.0) <= spent[record.id] <= 20.0 * (seconds + 1e-6)
