"""Many speeds at once are those of each job."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_models.speed.form import Mode
from optimus_models.speed.servers import PaperSpeedModel, SpeedModel
from optimus_scheduler.forecast.speeds import FURTHER, Speeds, SpeedTable
from optimus_scheduler.model import Allocation

measured = st.lists(
    st.tuples(st.integers(1, 16), st.integers(1, 16), st.floats(0.1, 10.0)), max_size=6, unique_by=lambda m: m[:2]
)
models = st.builds(
    lambda points, mode, batch, kind: kind.fit(
        [w for w, _, _ in points],
        [p for _, p, _ in points],
        [f for _, _, f in points],
        mode=mode,
        global_batch_size=batch,
    ),
    measured,
    st.sampled_from(["sync", "async"]),
    st.sampled_from([None, 32.0, 1024.0]),
    st.sampled_from([SpeedModel, PaperSpeedModel]),
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(models, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=12),
)
def test_a_table_predicts_what_each_job_predicts(fitted: list[SpeedModel], asked: list[tuple[int, int, int]]) -> None:
    every = [Speeds(model) for model in fitted]
    jobs, workers, servers = (np.array(column, dtype=np.int64) for column in zip(*asked, strict=True))
    jobs %= len(every)
    table = SpeedTable(every, np.full((len(every), 2), 40)).of(jobs)
    speeds = [every[job] for job in jobs]
    expected = [each.at(Allocation(w, p)) for each, (_, w, p) in zip(speeds, asked, strict=True)]
    assert table.at(workers, servers) == pytest.approx(expected, rel=1e-9)
    for step, found in zip(FURTHER, table.one_further(workers, servers), strict=True):
        sizes = [Allocation(min(w + step[0], 40), min(max(p, 1) + step[1], 40)) for _, w, p in asked]
        assert found == pytest.approx([each.at(size) for each, size in zip(speeds, sizes, strict=True)], rel=1e-9)


def test_jobs_of_all_kinds_share_a_table() -> None:
    kinds: tuple[Mode, ...] = ("sync", "async", "sync")
    speeds = [Speeds(SpeedModel.fit([1, 2], [1, 2], [1.0, 1.5], mode=mode)) for mode in kinds]
    ones = np.ones(3, dtype=np.int64)
    assert SpeedTable(speeds, np.ones((3, 2), dtype=np.int64)).at(ones, ones) == pytest.approx(
        [each.at(Allocation(1, 1)) for each in speeds]
    )
