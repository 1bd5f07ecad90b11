"""Words and colours of the page, as its own sources make them, without a browser."""

from __future__ import annotations

import json
import random
import re
import subprocess
from pathlib import Path
from typing import Any, get_args

import pytest

from optimus_cli.bodies import Interval
from optimus_cli.commands import project
from optimus_cli.show import render_predictions, wording
from optimus_contract.answers.jobs import ListedState
from optimus_scheduler.model.format import lasted

WEB = Path(__file__).resolve().parents[3] / "web"
PROGRAM = """
const [module, calls] = JSON.parse(require("fs").readFileSync(0, "utf8"));
const { existsSync, readFileSync } = require("fs");
const typescript = require("typescript");
const compilerOptions = { module: "CommonJS", target: "ES2022", jsx: "react-jsx", jsxImportSource: "preact" };
globalThis.localStorage = { getItem: () => null, setItem: () => undefined };
const loaded = new Map();
const wanted = (name) => {
  if (name.startsWith("./")) return load(name.slice(2));
  return name.endsWith(".css") ? {} : require(name);
};
const load = (name) => {
  if (!loaded.has(name)) {
    const made = { exports: {} };
    loaded.set(name, made);
    const file = [`src/${name}.ts`, `src/${name}.tsx`].find(existsSync);
    const { outputText } = typescript.transpileModule(readFileSync(file, "utf8"), { compilerOptions });
      new Function("module", "exports", "require", outputText)(made, made.exports, wanted);
  }
  return loaded.get(name).exports;
};
const plain = (value) => (value instanceof Map ? Object.fromEntries(value) : value);
console.log(JSON.stringify(calls.map(([name, ...given]) => plain(load(module)[name](...given)))));
"""


def called(module: str, *calls: list[Any]) -> list[Any]:
    """What functions of a module of the page return, in one process: each call is a name and arguments."""
    if not (WEB / "node_modules" / "typescript").exists():
        pytest.skip("the front end's tools are not installed (npm ci in web/)")
    done = subprocess.run(
        ["node", "-e", PROGRAM], cwd=WEB, input=json.dumps([module, calls]), capture_output=True, text=True, check=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def test_the_counts_above_the_jobs_are_of_what_their_column_of_states_says() -> None:
    """One that rounds paused is counted with those that are paused, and is still one that waits for tasks."""
    idle = {"finished_at": None, "wanted_workers": 0, "workers": 0, "reason": "WaitingForResources"}
    lines: list[tuple[dict[str, Any], str, str, bool]] = [
        ({**idle, "state": "queued"}, "waiting", "queued", True),
        ({**idle, "state": "paused"}, "paused", "paused", True),
        ({**idle, "state": "paused", "reason": "PausedByOwner"}, "paused", "paused", False),
        ({**idle, "state": "queued", "reason": "PausedByOwner"}, "paused", "paused", False),
        ({**idle, "state": "queued", "wanted_workers": 1}, "starting", "starting", False),
        ({**idle, "state": "running", "wanted_workers": 1}, "training", "running", False),
        ({**idle, "state": "failed", "finished_at": "2026-11-27T10:00:00Z"}, "ended", "failed", False),
    ]
    for place, name in enumerate(("groupOf", "stateWords", "waitsForTasks"), 1):
        assert called("groups", *([name, line[0]] for line in lines)) == [line[place] for line in lines]


def test_a_state_chooses_the_jobs_that_the_service_lists_for_it() -> None:
    gone = {"finished_at": None, "workers": 0, "reason": "WaitingForResources"}
    lines: list[tuple[dict[str, Any], set[str]]] = [
        ({**gone, "state": "queued", "wanted_workers": 0}, {"queued"}),
        ({**gone, "state": "queued", "wanted_workers": 1}, {"queued", "starting"}),
        ({**gone, "state": "paused", "wanted_workers": 1}, {"paused", "starting"}),
        ({**gone, "state": "paused", "wanted_workers": 1, "reason": "Cancelling"}, {"paused"}),
        ({**gone, "state": "running", "wanted_workers": 1}, {"running"}),
    ]
    asked = [(line, state, state in states) for line, states in lines for state in get_args(ListedState)]
    found = called("groups", *(["isOfState", line, state] for line, state, _ in asked))
    assert found == [is_listed for _, _, is_listed in asked]


def test_the_page_says_parts_that_are_done_as_the_command_line_does() -> None:
    parts = [each / 100 for each in range(101)] + [-1.0, 1.7, 0.9999, 1.0 - 1e-12]
    assert called("words", *(["percent", part] for part in parts)) == [wording.percent(part) for part in parts]


def test_the_page_says_times_as_the_command_line_does() -> None:
    cases: list[Interval] = [
        {"mean": mean, "low": low, "high": high}
        for mean, low, high in [
            (118, 15, 1130),
            (93, 12, 1314),
            (24, 18, 33),
            (324, 126, 540),
            (2484, 198, 67_446),
            (300_000, None, 300_000),
            (77, 0, 77),
            (77, 77, 77),
            (24, 18, None),
            (24, None, None),
            (83, 0, 154),
            (0, 0, 0.3),
        ]
    ]
    assert called("words", *(["left", case] for case in cases)) == [wording.duration_interval(case) for case in cases]
    assert called("words", ["range", cases[0]], ["range", cases[2]], ["range", cases[6]]) == [
        "15 s–18.8 min with 80 % probability",
        "18–33 s with 80 % probability",
        "its limit",
    ]


def test_a_time_that_is_over_is_rounded_alike_by_the_service_the_command_line_and_the_page() -> None:
    drawn = random.Random(1)
    times = [tenths / 10 for tenths in range(-20, 1300)] + [10 ** drawn.uniform(1, 6.5) for _ in range(1000)]
    told = [lasted(seconds) for seconds in times]
    assert told == [wording.duration(seconds) for seconds in times]
    on_the_page = [re.sub(r"(?<=min) 00 s$|(?<= )0(?=\d (s|min)$)", "", words) for words in told]  # 3 min, 3 min 5 s
    assert called("words", *(["duration", seconds] for seconds in times)) == on_the_page


def test_the_page_says_what_a_plan_takes_from_others_as_the_command_line_does() -> None:
    none: dict[str, Any] = {"lost_steps": 0, "lost_seconds": None, "loses_since_checkpoint": False}
    cases: list[Any] = [
        none,
        {**none, "loses_since_checkpoint": True},
        {**none, "lost_steps": 86, "lost_seconds": 65.0},
    ]
    told = [render_predictions.loses(case) for case in cases]
    assert told[1] == "what it made since its checkpoint, unless it saves"
    assert called("words", *(["loses", case] for case in cases)) == [each.replace(" 05 s", " 5 s") for each in told]


def test_beside_the_table_of_a_plan_stands_what_the_table_does_not_say() -> None:
    held = "Its tasks may have to wait until those of big (big-1) have stopped: that takes some seconds."
    smaller = "big (big-1) would have 1 worker instead of 4 workers and end 60 s later."
    later = "small (small-1), which waits, would start in 90 s instead of 60 s."
    plan = {"sentences": [held, smaller, later], "effects": [{"name": "big", "job_id": "big-1"}]}
    assert called("words", ["besideTable", plan]) == [[held, later]]


def test_the_page_says_a_limit_of_steps_as_one() -> None:
    limit, sure, open_end = (
        {"mean": 937, "low": low, "high": high} for low, high in ((0, 937), (937, 937), (500, 2000))
    )
    each = [limit, sure, open_end]
    assert called("words", *(["stepsOf", one] for one in each), *(["totalSteps", one] for one in each)) == [
        "at most 937 steps",
        "937 steps",
        "937 (500–2 000) steps",
        "at most 937",
        "937",
        "about 937",
    ]


def test_the_parts_of_a_pause_are_those_that_last() -> None:
    parts = {"save_seconds": None, "stop_seconds": 0.5, "start_seconds": 3.1, "load_seconds": None, "told_every": 100}
    assert called("sizes", ["parts", {"pause_parts": parts}]) == ["stop 0.500 s, start 3.10 s"]


def test_who_cancels_a_job_is_asked_by_what_it_has() -> None:
    def job(step: int, workers: int, **spec: bool) -> dict[str, Any]:
        has = {"workers": workers, "servers": 0}
        return {"finished_at": None, "directive": "run", "step": step, "spec": spec, "wanted": has, "running": has}

    asked = {
        ("Its tasks are stopped.", "Let it run"): job(0, 1),
        ("Its tasks are stopped, at step 1 000.", "Let it run"): job(1000, 2),
        ("It ends before it has made a step.", "Let it wait"): job(0, 0),
        ("It ends at step 100.", "Let it wait"): job(100, 0),
        ("It ends at step 100.", "Leave it paused"): job(100, 0, paused=True),
        ("It trains on outside the cluster, and is no longer watched.", "Let it run"): job(0, 0, tracked=True),
    }
    offered = called("actions", *(["actionsOf", each] for each in asked.values()))
    doubts = [next(each["doubt"] for each in actions if each["label"] == "Cancel") for actions in offered]
    assert [(each["words"], each["no"]) for each in doubts] == list(asked)


GREY = 10


def test_a_job_without_an_area_of_its_own_has_the_colour_of_the_others() -> None:
    drawn, training = [f"drawn-{k}" for k in range(10)], [f"trains-{k}" for k in range(12)]
    (first, full, later) = called(
        "colours", ["coloursOf", [], training[:5]], ["coloursOf", drawn, training], ["coloursOf", drawn[:8], training]
    )
    assert len(set(first.values())) == 5
    assert {full[job] for job in drawn} == set(range(10))
    assert {full[job] for job in training} == {GREY}
    assert [job for job in later if job not in {*drawn[:8], *training}] == []
    given = [later[job] for job in (*drawn[:8], *training) if later[job] != GREY]
    assert sorted(given) == list(range(10)), "what is free is given, each colour once"
    assert all(later[job] == full[job] for job in drawn[:8])


def test_the_page_says_quotas_and_their_limits_as_the_command_line_does() -> None:
    none = dict.fromkeys(("waiting_jobs", "max_workers", "workers_together", "max_priority"))
    plain = {**dict.fromkeys(("share", "cpu", "memory_bytes")), "gpus": {}, "may_borrow": True, "limits": none}
    cases: list[Any] = [
        plain,
        {**plain, "share": 1 / 3, "may_borrow": False},
        {**plain, "cpu": 1.0, "memory_bytes": 64 * 2**30, "gpus": {"v100": 2, "a100": 8}},
        {**plain, "cpu": 4 / 3, "limits": {**none, "waiting_jobs": 0}},
        {**plain, "share": 0.0, "limits": {**none, "workers_together": 9}},
        {**plain, "limits": {**none, "workers_together": 9, "max_priority": 0.25}},
    ]
    assert called("words", *(["quotaWords", case] for case in cases)) == [project.quota_words(case) for case in cases]
    bound = [dict(project.whom_limits_hold(case)).get("limits hold for", "") for case in cases]
    assert called("words", *(["whomLimitsHold", case["limits"]] for case in cases)) == bound
