"""Many speeds at once are those of each job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed_model import SpeedModel
from optimus_models.speed_terms import Mode
from optimus_scheduler.speed_table import SpeedTable
from optimus_scheduler.speeds import Speeds
from optimus_scheduler.types import Allocation

measured = st.lists(
    st.tuples(st.integers(1, 16), st.integers(1, 16), st.floats(0.1, 10.0)), max_size=6, unique_by=lambda m: m[:2]
)
models = st.builds(
    lambda points, mode, batch, plain: SpeedModel.fit(
        [w for w, _, _ in points],
        [p for _, p, _ in points],
        [f for _, _, f in points],
        mode=mode,
        global_batch_size=batch,
        form="paper" if plain else "auto",
    ),
    measured,
    st.sampled_from(["sync", "async"]),
    st.sampled_from([None, 32.0, 1024.0]),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(models, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 40)), max_size=12),
)
def test_a_table_predicts_what_each_job_predicts(fitted: list[SpeedModel], asked: list[tuple[int, int, int]]) -> None:
    speeds = [Speeds(model) for model in fitted]
    asked = [(job % len(speeds), workers, servers) for job, workers, servers in asked]
    jobs, workers, servers = (np.array(column, dtype=np.int64) for column in np.array(asked).reshape(-1, 3).T)
    expected = [speeds[job].at(Allocation(w, p)) for job, w, p in asked]
    most = np.full((len(speeds), 2), 40)
    assert SpeedTable(speeds, most).at(jobs, workers, servers) == pytest.approx(expected, rel=1e-9)


def test_jobs_of_all_kinds_share_a_table() -> None:
    kinds: tuple[Mode, ...] = ("sync", "async", "sync")
    speeds = [Speeds(SpeedModel.fit([1, 2], [1, 2], [1.0, 1.5], mode=mode)) for mode in kinds]
    jobs, ones = np.arange(3), np.ones(3, dtype=np.int64)
    assert SpeedTable(speeds, np.ones((3, 2), dtype=np.int64)).at(jobs, ones, ones) == pytest.approx(
        [each.at(Allocation(1, 1)) for each in speeds]
    )
