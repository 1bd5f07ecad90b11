"""Small traces of every format, with something wrong in them: each is replayed, or refused with a clear error."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optimus_scheduler.allocate.policies import POLICIES as KNOWN
from optimus_simulator.errors import BadTrace, Stuck
from optimus_simulator.options import Options, option_value
from optimus_simulator.scenario import Scenario, bound_of, run_all, simulate

HALF_A_DAY = Options(limit_days=0.5)
"""Rounds a minute apart, and at events: a thousand at most."""
CLUSTER: dict[str, Any] = {
    "nodes": [
        {"count": 2, "cpu": 16, "memory_gib": 64, "labels": {"rack": "a"}},
        {"count": 1, "cpu": 8, "gpus": {"t4": 4}, "labels": {"rack": "b"}},
    ],
    "projects": {"vision": {"share": 0.5, "may_borrow": False}, "text": {"cpu": 2, "memory_gib": 4, "gpus": {"t4": 1}}},
    "begins_at": 1.7e9,
    "round_seconds": 60.0,
    "learning_round_seconds": 10.0,
}
SERVED: dict[str, Any] = {
    "id": "a",
    "submitted_at": 5,
    "project": "vision",
    "family": "m:f",
    "priority": 2.0,
    "workers": {"cpu": 1, "memory_gib": 0.5, "minimum": 1, "maximum": 4, "requested": 2},
    "servers": {"cpu": 1, "minimum": 1, "maximum": 2, "requested": 1},
    "mode": "sync",
    "architecture": "ps",
    "convergence": {
        "loss_decrease": 0.01,
        "max_epochs": 20,
        "max_steps": 1000,
        "patience_epochs": 3,
        "target_metric": {"name": "accuracy", "at_least": 0.9, "at_most": None},
    },
    "global_batch_size": 32,
    "deadline_seconds": 4000,
    "truth": {
        "total_steps": 100,
        "speed": {"theta": [0.03, 0.1, 0.1, 0.01, 0.01], "measured": [[1, 1, 1.0], [2, 1, 1.5]]},
        "loss": [0.5, 1, 0.1],
        "steps_per_epoch": 10,
        "crossing_factor": 0.9,
        "rack_crossing_factor": 0.8,
    },
    "happened": {
        "state": "succeeded",
        "finished_at": 300.0,
        "start_seconds": 2.0,
        "change_seconds": [0.5],
        "stops": [0.5],
        "sizes": [[5, 1, 1, None]],
    },
}
RING: dict[str, Any] = {
    "id": "b",
    "submitted_at": 0,
    "architecture": "allreduce",
    "gpu_types": ["t4"],
    "workers": {"gpus": {"t4": 1}},
    "truth": {
        "total_steps": 50,
        "speed": {"compute_seconds": 1, "exchange_seconds": 0.1, "pass_seconds": 0.01},
        "losses": [[1, 2.0], [20, 1.0]],
        "steps_per_epoch": 10,
        "type_speeds": {"t4": 2.0},
    },
}
ELASTIC: dict[str, Any] = {
    **RING,
    "id": "c",
    "global_batch_size": 128,
    "elastic_batch": {"minimum": 64, "maximum": 512, "per_pass": 64, "most_passes": 4},
    "truth": {**RING["truth"], "noise_scale": [100, 2000]},
}
OWN = [CLUSTER, SERVED, RING, ELASTIC]
NUMBERS = (-1, 0, 0.5, 1, 3, 1e-320, 1e38, 1e308, -1e308, float("nan"), float("inf"), 10**400, 2**63, 10**18)
OTHERS = (None, True, False, "", "x", "1", "\ud800")
HOLDERS: tuple[Any, ...] = ([], [1], [[1]], [0, 0, 0], [[0, 0, 1]], {}, {"x": 1}, {"t4": -1}, {"a": 1, "b": 1})
ODD: st.SearchStrategy[Any] = st.sampled_from([*NUMBERS, *OTHERS, *HOLDERS])
WORDS = st.sampled_from(
    ["", "0", "-1", "1", "nan", "inf", "1e308", "1e-320", "9" * 5000, "x", "1.5", "1_0", "٤", '"', "\0", " ", "2,3"]
)
POLICIES = st.sampled_from(["optimus", "srtf", "fifo", "drf"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document."""
    if path:
        yield path
    if isinstance(value, dict | list):
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(each, (*path, name))


@st.composite
def own_traces(draw: st.DrawFn) -> str:
    """Lines of our own format with one to three odd values, or one left out, or what is no field."""
    lines = deepcopy(OWN[: draw(st.integers(1, len(OWN)))])
    for _ in range(draw(st.integers(1, 3))):
        *path, last = draw(st.sampled_from(list(places(lines))))
        holder: Any = lines
        for name in path:
            holder = holder[name]
        match draw(st.sampled_from(["odd", "odd", "odd", "gone", "twice", "unknown"])):
            case "odd":
                holder[last] = deepcopy(draw(ODD))
            case "gone":
                del holder[last]
            case "twice" if isinstance(holder, list):
                holder.append(deepcopy(holder[last]))
            case _ if isinstance(holder, dict):
                holder["other"] = 1
        if not lines:
            break
    return "\n".join(map(json.dumps, lines))


def tables(heading: str, *rows: str) -> st.SearchStrategy[str]:
    """A table with a cell that is odd, a row that is too short, or there twice, or lines that are missing."""

    @st.composite
    def table(draw: st.DrawFn) -> str:
        lines = [line.split(",") for line in (*heading.splitlines(), *rows)]
        for _ in range(draw(st.integers(1, 2))):
            number = draw(st.integers(0, len(lines) - 1))
            match draw(st.sampled_from(["odd", "odd", "odd", "short", "long", "twice", "cut"])):
                case "odd" if lines[number]:
                    lines[number][draw(st.integers(0, len(lines[number]) - 1))] = draw(WORDS)
                case "short":
                    lines[number].pop()
                case "long":
                    lines[number].append("7")
                case "twice":
                    lines.append(lines[number])
                case _:
                    del lines[number:]
            if not lines or not all(lines):
                break
        return "\n".join(map(",".join, lines)) + "\n"

    return table()


def is_replayed_or_refused(trace: str, path: Path, policy: str) -> None:
    """Any other error is the program's own; a refusal names the file."""
    replays = (lambda: simulate(Scenario(trace, policy, options=HALF_A_DAY)), lambda: bound_of(trace, Options(), 0))
    refusal = ""
    for replay in replays:
        with suppress(Stuck):
            try:
                replay()
            except BadTrace as error:
                refusal = str(error)
        assert not refusal or str(path.parent.parent) in refusal, refusal
        assert len(refusal) < 1000


@given(own_traces(), POLICIES)
@settings(max_examples=60)
def test_our_own_lines(text: str, policy: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "traces" / "mine.jsonl"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        is_replayed_or_refused(str(path), path, policy)


FORMATS = {
    "{}": ("a.csv", tables("# nodes=2 gpus=4\nid,submitted_at,workers,duration_seconds", "x,0,4,360", "y,5,1,60")),
    "pcs:{}": (
        "a.csv.gz",
        tables(
            "app_id,submit_time,service,num_jobs,sleep_time,model_name", "0,0.0,1200,4,0.0,a", "1,60.0,90.0,1,60.0,b"
        ),
    ),
    "philly:{}": (
        "a.csv.gz",
        tables("timestamp,duration,num_gpus", "2017-10-03 00:00:00,600,8", "2017-10-03 00:01:00.5,60.5,1"),
    ),
    "elasticflow:{}": (
        "195job.csv",
        tables(
            "job_id,submission_time,num_iteration,model_name,deadline,batch_size,num_gpu",
            "0,100,300,vgg16,1000,64,8",
            "1,160,30,vgg16,400,64,1",
        ),
    ),
}
SPEEDS = "global_batch_size,1,2,4,8\n64,1.0,1.8,3.0,5.0\n128,0.6,1.1,2.0,3.5\n"


@pytest.mark.parametrize("kind", FORMATS)
@given(st.data(), POLICIES)
@settings(max_examples=60)
def test_tables(kind: str, data: st.DataObject, policy: str) -> None:
    name, strategy = FORMATS[kind]
    content = data.draw(strategy).encode()
    content = gzip.compress(content, mtime=0) if name.endswith(".gz") else content
    content = content[: data.draw(st.integers(0, len(content)))] if data.draw(st.integers(0, 9)) == 0 else content
    with TemporaryDirectory() as folder:
        path = Path(folder) / "traces" / name
        path.parent.mkdir()
        path.write_bytes(content)
        speeds = data.draw(tables(*SPEEDS.split("\n")[:3])) if data.draw(st.integers(0, 4)) == 0 else SPEEDS
        (Path(folder) / "throughputs_A100").mkdir()
        (Path(folder) / "throughputs_A100" / "vgg16.csv").write_text(speeds, encoding="utf-8")
        is_replayed_or_refused(kind.format(path), path, policy)


@given(st.data(), POLICIES)
@settings(max_examples=40)
def test_pollux_workloads(data_of: Path, data: st.DataObject, policy: str) -> None:
    workload = tables(
        "name,time,application,num_replicas,batch_size",
        "a-0,0,cifar10,1,128",
        "b-1,30,ncf,1,256",
        "c-2,60,cifar10,4,512",
    )
    with TemporaryDirectory() as folder:
        path = Path(folder) / "workloads" / "w.csv"
        path.parent.mkdir()
        path.write_text(data.draw(workload), encoding="utf-8")
        (Path(folder) / "profiles").symlink_to(data_of / "pollux" / "profiles")
        is_replayed_or_refused(f"pollux:{path}", path, policy)


@pytest.fixture(scope="session")
def data_of(data: Path) -> Path:
    """For properties: the measured data."""
    return data


@given(st.data(), st.sampled_from([each.name for each in fields(Options) if type(each.default) is float]))
@settings(max_examples=40)
def test_options(data: st.DataObject, name: str) -> None:
    """A value that an option may have ends, too, and so does the least and the largest."""
    value = data.draw(st.one_of(st.floats(), st.sampled_from([0.0, 1e-9, 0.01, 0.1, 0.999, 1.0, 10.0, 1e4, 1e6, 1e9])))
    try:
        given_options = replace(HALF_A_DAY, **{name: option_value(name, repr(value))})  # type: ignore[arg-type]
    except ValueError as error:
        refusal = str(error)
        assert "must be" in refusal
        return
    with TemporaryDirectory() as folder, suppress(BadTrace, Stuck):
        path = written(Path(folder) / "mine.jsonl", *OWN)
        simulate(
            Scenario(path, "optimus", options=replace(given_options, limit_days=min(given_options.limit_days, 0.5)))
        )


def written(path: Path, *lines: object) -> str:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([CLUSTER], "it has no jobs"),
        ([CLUSTER, RING, RING], "job b is there 2 times"),
        ([CLUSTER, "[" * 100_000 + "]" * 100_000], "line 2: its JSON is nested too deeply"),
        ([CLUSTER, json.dumps(RING).replace("50", "9" * 5000)], "line 2: it has a number with too many digits"),
        (
            [CLUSTER, {**RING, "submitted_at": 10**400}],
            "job b: submitted_at is a number with more than 300 digits, but",
        ),
        ([CLUSTER, json.dumps(RING).replace('"id"', '"id": "x", "id"')], 'line 2: "id" is there twice in one object'),
        ([{"nodes": []}, RING], "line 1: nodes is a list of 0, but must be a list that is not empty"),
        ([{"nodes": [{"count": 0}]}, RING], "nodes[0].count is 0, but must be a whole number from 1 to 100000"),
        ([{"nodes": [{"cpu": 4}]}, RING], "job b: 1 workers, its fewest, have no room on these nodes"),
        (
            [{"nodes": [{"cpu": 4}]}, RING, {**RING, "id": "c"}],
            "job c: 1 workers, its fewest, have no room on these nodes, even without other jobs: it could never start. "
            "Take the lines of such jobs out",
        ),
        (
            [{"nodes": [{"gpus": {"t4": 4}}], "projects": {"default": {"share": 0, "may_borrow": False}}}, RING],
            "job b: 1 workers, its fewest, are more than its project, which may not borrow, ever has",
        ),
        ([CLUSTER, {**RING, "architecture": "ring"}], 'architecture is "ring", but must be ps or allreduce'),
        (
            [CLUSTER, {**RING, "workers": {"gpus": {"t4": 1}, "minimum": 0}}],
            "workers.minimum is 0, but must be a whole",
        ),
        (
            [CLUSTER, {**SERVED, "convergence": {"max_steps": "x"}}],
            'job a: convergence.max_steps is "x", but must be a',
        ),
        (
            [CLUSTER, {**SERVED, "truth": {**SERVED["truth"], "loss": [0, 0, 0]}}],
            "truth.loss[1] is 0, but must be from",
        ),
        (
            [CLUSTER, {**SERVED, "truth": {**SERVED["truth"], "speed": {"theta": [0] * 5}}}],
            "truth.speed is inf steps/s with",
        ),
        (
            [CLUSTER, {**SERVED, "truth": {**SERVED["truth"], "speed": {"theta": [1] * 5, "measured": [[0, 0, 1]]}}}],
            "truth.speed.measured[0][0] is 0, but must be a whole number from 1 to 1024",
        ),
    ],
)
def test_what_is_wrong_is_said_at_once(tmp_path: Path, lines: list[Any], said: str) -> None:
    trace = written(tmp_path / "mine.jsonl", *lines)
    with pytest.raises(BadTrace) as told:
        simulate(Scenario(trace, "optimus"))
    assert said in str(told.value)
    assert trace in str(told.value)


NEVER = "even without other jobs: it could never start"
ASKS = {"gpus": {"t4": 1}, "maximum": 8, "requested": 5}
FOUR = {"nodes": [{"count": 1, "gpus": {"t4": 4}}]}
CONFINED = {"projects": {"default": {"share": 0.5, "may_borrow": False}}}


@pytest.mark.parametrize("policy", sorted(KNOWN))
@pytest.mark.parametrize(
    ("asked", "of_cluster", "said"),
    [
        (5, {}, "job b: 5 workers, the only size that {} gives it, have no room on these nodes, even without other"),
        (
            4,
            CONFINED,
            "job b: 4 workers, the only size that {} gives it, are more than its project, which may not borrow",
        ),
        (4, {}, None),
    ],
)
def test_a_job_of_the_one_size_that_a_policy_gives_has_room_or_is_refused_at_once(
    tmp_path: Path, policy: str, asked: int, of_cluster: dict[str, Any], said: str | None
) -> None:
    """Under every policy that there is: those that choose sizes run it."""
    job = {**RING, "workers": {**ASKS, "requested": asked}}
    trace = written(tmp_path / "mine.jsonl", {**FOUR, **of_cluster}, job)
    if said is None or policy not in ("fifo", "tetris", "tiresias"):
        assert len(simulate(Scenario(trace, policy, options=HALF_A_DAY)).jobs) == 1
        return
    with pytest.raises(BadTrace) as told:
        simulate(Scenario(trace, policy, options=HALF_A_DAY))
    assert said.format(policy) in str(told.value)


@pytest.mark.parametrize(
    ("kind", "name", "lines"),
    [
        ("philly:{}", "cluster_job_log.csv", ["timestamp,duration,num_gpus", "2017-10-03 00:00:00,600,2000"]),
        ("pcs:{}", "0-e4ad17.csv", ["app_id,submit_time,service,num_jobs,model_name", "0,0,600,60,vgg"]),
        ("{}", "jobs.csv", ["# nodes=2 gpus=4", "id,submitted_at,workers,duration_seconds", "x,0,8,600"]),
    ],
)
def test_tables_of_jobs_that_half_the_cluster_has_no_room_for_are_refused_at_once(
    tmp_path: Path, kind: str, name: str, lines: list[str]
) -> None:
    content = ("\n".join(lines) + "\n").encode()
    (tmp_path / name).write_bytes(gzip.compress(content, mtime=0) if kind != "{}" else content)
    half = replace(HALF_A_DAY, cluster=0.5)
    with pytest.raises(BadTrace, match=NEVER):
        simulate(Scenario(kind.format(tmp_path / name), "fifo", options=half))


def test_a_pollux_job_of_more_replicas_than_the_cluster_has_is_refused_at_once(tmp_path: Path, data_of: Path) -> None:
    path = tmp_path / "workloads" / "w.csv"
    path.parent.mkdir()
    path.write_text("name,time,application,num_replicas,batch_size\na,0,cifar10,65,128\n")
    (tmp_path / "profiles").symlink_to(data_of / "pollux" / "profiles")
    with pytest.raises(BadTrace, match=NEVER):
        simulate(Scenario(f"pollux:{path}", "fifo"))


def test_nothing_is_simulated_if_another_policy_has_no_room_for_a_job(tmp_path: Path) -> None:
    trace = written(tmp_path / "mine.jsonl", FOUR, {**RING, "workers": ASKS})
    done = list[int]()
    with pytest.raises(BadTrace, match=NEVER):
        run_all([Scenario(trace, policy) for policy in ("srtf", "fifo")], 1, lambda index, _: done.append(index))
    assert done == []


def test_lines_are_counted_as_they_are_in_the_file(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="line 4: not JSON: Expecting value at character 1"):
        simulate(Scenario(written(tmp_path / "mine.jsonl", CLUSTER, RING, "", "x"), "optimus"))
