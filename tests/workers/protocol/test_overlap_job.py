"""A job whose gradients stop being final when they were expected to be."""

from __future__ import annotations

from collections.abc import Callable

import torch
from tests.workers.protocol.conftest import Job, server, worker
from tests.workers.protocol.replay import Replay, final_sections, history
from tests.workers.protocol.tiny_training import MICRO_BATCHES, make


def test_a_gradient_that_changes_late_costs_a_repeated_step_and_nothing_else(make_job: Callable[..., Job]) -> None:
    n_steps = 12
    arguments = {"dropout": False, "in_parts_from": 6 * MICRO_BATCHES + 1}
    job = make_job(arguments, convergence={"max_steps": n_steps})
    job.scale(worker(0), server(0))
    assert job.wait_for_result()["outcome"] == "succeeded", job.logs()
    assert job.exit_code(worker(0)) == 0
    assert "AccumulatedTwice" in job.logs()
    memberships = history(job.directory)
    assert [(each.step, len(each.workers)) for each in memberships] == [(0, 1), (6, 1)], "the seventh step, once more"
    version, sections = final_sections(job.directory, 2)
    assert version == n_steps
    replay = Replay(make(dropout=False), seed=5)
    replay.follow(memberships, n_steps)
    found = sections[0][: len(replay.vector)]
    torch.testing.assert_close(found, replay.vector.data, rtol=1e-5, atol=1e-6)
