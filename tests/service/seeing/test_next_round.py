"""Of a job that waits it is told that the next round starts it only where that round does."""

from __future__ import annotations

from typing import Any

import pytest
from tests.service.loop.loop_world import World
from tests.service.seeing.previews import preview_of

from optimus_scheduler.what_if import NEXT_ROUND

once = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
WHOLE: dict[str, Any] = {"workers": {"min": 6, "max": 6}, "servers": {"min": 2, "max": 2}}


def after_an_end(world: World) -> None:
    """`first` has just ended, and no round has followed. `older` waits longer than `alike`, which is like `first`."""
    world.submit("first", **WHOLE, task="short:task")
    world.round()
    world.train(1.0)
    world.submit("older", **WHOLE, task="short:task", convergence={"max_steps": 50_000})
    world.train(1.0)
    world.submit("alike", **WHOLE, task="short:task", convergence={"loss_decrease": {"below": 0.05}})
    world.live_until("it has ended", lambda: world.state("first").is_final)


@once
@pytest.mark.parametrize("job_id", ["older", "alike"])
def test_the_next_round_is_told_to_start_a_job_only_where_it_does(world: World, job_id: str) -> None:
    """What the job that has just ended teaches of the one like it, that round knows."""
    after_an_end(world)
    advice = preview_of(world).what_gives_more(job_id, dict)
    assert advice is not None
    world.round()
    starts = {each: not world.repository.wanted.get(each).allocation.is_empty for each in ("older", "alike")}
    assert (NEXT_ROUND in advice.changes) is starts[job_id]
    assert starts == {"older": False, "alike": True}
