"""The traces of PCS, and the policy that keeps its predictions."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from optimus_simulator.errors import BadTrace
from optimus_simulator.options import Options
from optimus_simulator.scenario import Scenario, simulate
from optimus_simulator.traces.pcs import read_pcs

HEADER = "app_id,submit_time,service,num_jobs,sleep_time,model_name"


def written(folder: Path, *rows: str) -> Path:
    path = folder / "trace_small.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as text:
        text.write("\n".join([HEADER, *rows]) + "\n")
    return path


def test_a_row_is_a_job_of_up_to_so_many_gpus(tmp_path: Path) -> None:
    trace = read_pcs(written(tmp_path, "0,0.0,1200.5,4,0.0,Resnet50Model128", "1,60.0,90.0,1,60.0,ChatbotModel256"))
    assert trace.capacity.gpus == {"gpu": 64}
    first, second = trace.jobs
    assert (first.spec.worker.minimum, first.spec.worker.maximum) == (1, 4)
    assert first.spec.convergence.max_steps == 1200
    assert first.truth.begin().seconds_left(((1, 0),)) == pytest.approx(1200.0)
    assert second.submitted_at == 60.0


def test_blind_jobs_do_not_tell_their_length(tmp_path: Path) -> None:
    (job,) = read_pcs(written(tmp_path, "0,0.0,1200,4,0.0,Resnet50Model128"), steps_stated=False).jobs
    assert job.spec.convergence.max_steps is None


@pytest.mark.parametrize("row", ["0,0.0,many,4,0.0,m", "0,0.0,10,0,0.0,m", "0"])
def test_a_bad_row_is_a_bad_trace(tmp_path: Path, row: str) -> None:
    with pytest.raises(BadTrace, match="not a trace of PCS"):
        read_pcs(written(tmp_path, row))


def test_a_missing_file_is_a_bad_trace(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="not a trace of PCS"):
        read_pcs(tmp_path / "none.csv.gz")


def test_later_jobs_of_its_class_do_not_delay_a_predictable_job(tmp_path: Path) -> None:
    rows = [f"{n},{60.0 * n},{40_000 - n},64,0.0,m" for n in range(4)]
    alone = _ends(written(tmp_path, *rows[:1]))
    crowded = _ends(written(tmp_path, *rows))
    assert crowded["pcs-00000"] == pytest.approx(alone["pcs-00000"])


def test_a_much_smaller_job_does_not_wait_for_a_predictable_one(tmp_path: Path) -> None:
    ends = _ends(written(tmp_path, "0,0.0,400000,64,0.0,m", "1,600.0,600,1,0.0,m"))
    assert ends["pcs-00001"] < 1300.0


def _ends(path: Path) -> dict[str, float]:
    options = Options(oracle=True, restart_seconds=0.0)
    return {job.id: job.finished_at for job in simulate(Scenario(f"pcs:{path}", "predictable", 0, options)).jobs}
