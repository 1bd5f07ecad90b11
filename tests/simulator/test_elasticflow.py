"""ElasticFlow's traces: rows become jobs with deadlines, whose speeds are those that were measured."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from optimus_scheduler.allocate.policies import policy_named
from optimus_simulator.bounds.bound import bound
from optimus_simulator.errors import BadTrace
from optimus_simulator.options import Options
from optimus_simulator.outcome.comparison import IN_SENTENCES, as_json, columns_among, compare
from optimus_simulator.outcome.outcome import deadline_answers
from optimus_simulator.outcome.report import write_report
from optimus_simulator.replay import Replay
from optimus_simulator.scenario import Scenario, load, simulate
from optimus_simulator.trace import Trace
from optimus_simulator.traces.elasticflow import read_elasticflow

HEAD = "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu,duration"
SPEEDS = "global_batch_size,1,2,4,8\n64,1.0,1.8,3.0,\n128,0.5,1.0,nan,0\n"


def written(folder: Path, *rows: str, name: str = "195job") -> Path:
    speeds = folder / "throughputs_A100"
    speeds.mkdir(exist_ok=True)
    (speeds / "net.csv").write_text(SPEEDS, encoding="utf-8")
    traces = folder / "traces"
    traces.mkdir(exist_ok=True)
    path = traces / f"{name}.csv.gz"
    with gzip.open(path, "wt", encoding="utf-8") as text:
        text.write("\n".join([HEAD, *rows]) + "\n")
    return path


def test_a_row_becomes_a_job(tmp_path: Path) -> None:
    trace = read_elasticflow(written(tmp_path, "a,1000,300,net,1400,64,8,80", "b,1010,50,net,1300,128,1,100"))
    first, second = trace.jobs
    assert trace.capacity.gpus == {"a100": 128}
    assert (first.submitted_at, first.spec.deadline_at) == (0.0, 400.0)
    assert (second.submitted_at, second.spec.deadline_at) == (10.0, 300.0)
    assert first.spec.requested_workers == first.spec.worker.maximum == 4
    assert second.spec.worker.maximum == 2
    assert first.truth.steps_per_second(((2, 0),)) == 1.8
    assert first.truth.steps_per_second(((3, 0),)) == pytest.approx(2.4)
    assert first.spec.convergence.max_steps == 300
    blind = read_elasticflow(written(tmp_path, "a,1000,300,net,1400,64,8,80"), steps_stated=False)
    assert blind.jobs[0].spec.convergence.max_steps is None


@pytest.mark.parametrize(
    ("row", "name", "said"),
    [
        ("a,0,300,net,400,32,8,80", "195job", "no speeds with a batch of 32"),
        ("a,0,300,other,400,64,8,80", "195job", "other.csv"),
        ("a,0,many,net,400,64,8,80", "195job", "many"),
        ("a,0,300,net,400,64,8,80", "unknown", "which cluster"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, row: str, name: str, said: str) -> None:
    with pytest.raises(BadTrace, match=said):
        read_elasticflow(written(tmp_path, row, name=name))


def on_one_node(path: Path) -> Trace:
    trace = load(f"elasticflow:{path}", Options(cluster=0.0625), 0)
    (node,) = trace.nodes
    assert node.capacity.gpus == {"a100": 8}
    return trace


ROWS = ("late,0,600,net,2000,64,4,200", "soon,10,300,net,130,64,4,100", "other,10,300,net,3000,64,4,100")


def ends_by(policy: str, trace: Trace, *, deadlines: bool = True) -> tuple[dict[str, float], float]:
    options = Options(oracle=True, restart_seconds=1.0, deadlines=deadlines)
    outcome = Replay(trace, policy_named(policy), options).run()
    assert outcome.figures()["deadlines_met"] <= (bound(trace, options).deadlines_met or 0.0)
    return {job.id: job.finished_at for job in outcome.jobs}, outcome.figures()["deadlines_met"]


def test_the_earliest_deadline_comes_first(tmp_path: Path) -> None:
    trace = on_one_node(written(tmp_path, *ROWS))
    ends, met = ends_by("edf", trace)
    assert ends["ef-00001"] <= 130.0
    assert ends["ef-00002"] > ends["ef-00000"]
    assert met == 1.0


def test_deadlines_that_are_not_told_change_nothing_and_are_counted(tmp_path: Path) -> None:
    """Without a deadline fifo lets nobody pass; with one, the job that is due claims its room under any policy."""
    trace = on_one_node(written(tmp_path, "a,0,600,net,9000,64,4,200", "b,1,600,net,9000,64,4,200", ROWS[1]))
    _, told = ends_by("fifo", trace)
    _, untold = ends_by("fifo", trace, deadlines=False)
    assert told == 1.0
    assert untold == pytest.approx(2 / 3)


def test_a_measured_trace_is_read(data: Path) -> None:
    trace = load(f"elasticflow:{data}/elasticflow/traces/195job.csv.gz", Options(), 0)
    assert len(trace.jobs) == 195
    pollux = load(f"elasticflow:{data}/elasticflow/elasticVpollux_e.csv", Options(), 0)
    assert pollux.capacity.gpus == {"t4": 64}


def test_the_scenario_names_it(tmp_path: Path) -> None:
    path = written(tmp_path, *ROWS)
    outcome = simulate(Scenario(f"elasticflow:{path}", "edf", 0, Options(oracle=True)))
    assert outcome.trace == "195job"


def test_the_published_simulation_drops_declined_jobs(tmp_path: Path) -> None:
    """Three jobs that take 250 s of half of the node: the third would be late beside the others, and never runs."""
    rows = ("a,0,750,net,400,64,4,250", "b,61,750,net,461,64,4,250", "c,122,750,net,360,64,4,250")
    options = Options(cluster=0.0625).like_elasticflow()
    outcome = simulate(Scenario(f"elasticflow:{written(tmp_path, *rows)}", "elasticflow", 0, options))
    assert [job.in_time for job in outcome.jobs] == [True, True, False]
    assert [job.dropped for job in outcome.jobs] == [False, False, True]
    assert outcome.figures()["mean_jct_seconds"] == sum(job.jct_seconds for job in outcome.jobs[:2]) / 2
    answers = deadline_answers([outcome])
    assert (answers["promised"], answers["promised_met"], answers["declined"], answers["declined_missed"]) == (
        2,
        2,
        1,
        1,
    )


def test_where_every_job_is_dropped_there_are_no_times(tmp_path: Path) -> None:
    """Its completion times were told as 0 s."""
    trace = f"elasticflow:{written(tmp_path, 'a,0,750,net,100,64,4,250', 'b,61,750,net,120,64,4,250')}"
    options = Options(cluster=0.0625).like_elasticflow()
    outcomes = [simulate(Scenario(trace, policy, 0, options)) for policy in ("elasticflow", "edf")]
    assert outcomes[0].figures() == {"deadlines_met": 0.0}
    results = compare(outcomes)
    document = as_json(results)
    figures, others = (each["figures"] for each in document["policies"])
    assert figures["mean_jct_seconds"] is None
    assert document["policies"][0]["runs"][0]["mean_jct_seconds"] is None
    assert others["mean_jct_seconds"] > 0
    assert [column.cell(results[0].figures) for column in columns_among(results)][:2] == ["—", "—"]
    known = [column.title for column in columns_among(results) if column.name not in IN_SENTENCES]
    assert [column.title for column in columns_among(results[:1])] == known
    write_report(results, [], tmp_path / "report.html")
    assert "no job ran" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(("policy", "published"), [("elasticflow", 0.981), ("edf", 0.769)])
def test_the_published_figures_come_out(data: Path, policy: str, published: float) -> None:
    """Within one per cent of the jobs."""
    trace = f"elasticflow:{data}/elasticflow/traces/cluster10.csv.gz"
    outcome = simulate(Scenario(trace, policy, 0, Options().like_elasticflow()))
    assert outcome.figures()["deadlines_met"] == pytest.approx(published, abs=0.01)
