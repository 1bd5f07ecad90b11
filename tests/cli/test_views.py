"""What is shown holds up when nothing, or nonsense, is known."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.text import Text
from tests.cli import builders
from tests.cli.builders import interval

from optimus_cli import output
from optimus_cli.show import (
    layout,
    live,
    render_explanation,
    render_job,
    render_jobs,
    render_predictions,
    render_tables,
    wording,
)
from optimus_cli.show.live import Frame
from optimus_cli.watching import LineDisplay

NOW = datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC)
NAN = float("nan")


def shown(renderable: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(renderable)
    output = console.file
    assert isinstance(output, io.StringIO)
    return output.getvalue()


def strange_jobs() -> list[Any]:
    nonsense: dict[str, Any] = dict.fromkeys(("loss", "progress", "steps_per_second", "epoch"), NAN)
    return [
        builders.job(),
        builders.unknown_job(),
        builders.finished_job(),
        builders.finished_job(state="failed", failure="", result=None),
        builders.finished_job(state="cancelled", jct_seconds=None, result=None),
        builders.job(**nonsense, remaining_steps=interval(NAN), remaining_seconds=interval(NAN, NAN, NAN)),
        builders.job(progress=7.5, step=10**15, name="n" * 63, message="[bold]not markup[/nonsense]"),
        builders.job(spec={}, state="some-new-state"),
    ]


def test_an_elastic_batch_is_shown_with_its_bounds() -> None:
    spec = {**builders.job()["spec"], "elastic_batch": {"minimum": 32, "maximum": 512, "per_pass": 64}}
    job = builders.job(spec=spec, global_batch=96, noise_scale=1234.5)
    point = builders.allocation(3, 2, 0, global_batch=96)
    text = shown(render_job.job_description(job, [point], [], NOW), width=120)
    assert "96 of 32 to 512 (elastic); noise scale 1 234 examples" in text
    assert "2w+0p, batch 96" in text
    assert "32 of 32 to 512 (elastic); noise scale not measured yet" in shown(
        render_job.job_description(builders.job(spec=spec), [], [], NOW), width=120
    )


def test_of_a_training_elsewhere_only_what_it_told_is_shown() -> None:
    spec = {"name": "bert", "task": None, "command": None, "mode": "sync", "tracked": True}
    result = {"outcome": "succeeded", "step": 812, "final_loss": None, "metrics": {}, "checkpoint": None, "model": None}
    ended = builders.finished_job(spec=spec, epoch=0.0, result=result)
    text = shown(render_job.job_description(ended, [], [], NOW), width=120)
    assert "outside the cluster, and tells its steps by itself" in text
    for unknown in ("None", "epoch", "Final loss", "Metrics"):
        assert unknown not in text, unknown
    told = builders.finished_job(spec=spec, epoch=1.5, result=result | {"final_loss": 0.05})
    text = shown(render_job.job_description(told, [], [], NOW), width=120)
    assert "epoch 1.50" in text
    assert re.search(r"Final loss +0\.05000? *$", text, re.MULTILINE), "it is the last that was told, not a mean"


def test_a_job_that_was_resumed_after_it_had_failed_says_what_with() -> None:
    job = builders.job(retries=0, last_error="OSError: disk full")
    assert "Last error OSError: disk full; its owner resumed it" in " ".join(
        shown(render_job.job_description(job, [], [], NOW), width=120).split()
    )
    assert live.awaited_retry({**job, "retry_at": "2026-01-02T03:05:35Z"}) is None, "it was no retry"


def test_a_job_that_waits_to_retry_says_when_and_why() -> None:
    job = builders.job(spec={**builders.job()["spec"], "retries": 2}, state="paused", retries=1, attempt=1)
    job |= {"retry_at": "2026-01-02T03:05:35Z", "last_error": "OSError: [stale] file handle"}
    text = shown(render_job.job_description(job, [], [], NOW), width=120)
    assert "waits for retry 1 of 2, in 30 s: OSError: [stale] file handle" in text
    for watched in (live.line(job), shown(live.view(Frame([job], None, 1.0)))):
        assert "retry 1 of 2 after OSError: [stale] file handle" in watched
    job["retry_at"] = "2026-01-02T03:05:00Z"
    assert "retry 1 of 2, when there is room:" in shown(render_job.job_description(job, [], [], NOW), width=120)
    job["retry_at"] = None
    text = shown(render_job.job_description(job, [], [], NOW), width=120)
    assert "1 of 2 used; last error: OSError" in text
    assert "Retries" not in shown(render_job.job_description(builders.job(), [], [], NOW))


def a_script_that_just_began(line: str | None) -> Any:
    """`line`: what is reported of what it prints."""
    profile = {"learned_from": None, "unread_line": line, "suggested_pattern": None}
    return builders.job(state="running", step=0, profile=profile, spec={"command": ["torchrun", "train.py"]})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (None, "nothing so far: no step was told"),
        ("(nothing so far)", "nothing: it has printed nothing so far"),
    ],
)
def test_what_a_script_that_just_began_prints_is_not_judged_before_it_is_known(line: str | None, said: str) -> None:
    assert said in shown(render_job.job_description(a_script_that_just_began(line), [], [], NOW), width=120)


@pytest.mark.parametrize(
    ("command", "gpus", "said"),
    [
        (["torchrun", "--nproc-per-node", "2", "train.py"], 0, "2 in each worker"),
        (["torchrun", "train.py"], 4, "4 in each worker"),
        (["python", "train.py"], 0, None),
    ],
)
def test_how_many_processes_a_launcher_starts_is_said(command: list[str], gpus: int, said: str | None) -> None:
    usual = builders.job()["spec"]
    workers = {"min": 1, "max": 1, "resources": {"cpu": 1.0, "memory_bytes": 2**29, "gpus": gpus}}
    job = builders.job(spec=usual | {"command": command, "workers": workers})
    text = shown(render_job.job_description(job, [], [], NOW), width=120)
    assert said in text if said else "Processes" not in text


@pytest.mark.parametrize("job", strange_jobs())
def test_every_job_can_be_shown(job: Any) -> None:
    for text in (
        shown(live.view(Frame([job], builders.cluster(), 1.0))),
        shown(render_jobs.job_list([job], NOW)),
        shown(render_job.job_description(job, [], [], NOW)),
        shown(render_job.job_description(job, [builders.allocation(3, 1, 1, pause_seconds=None)], [], NOW)),
        shown(render_predictions.prediction(job, builders.predictions())),
        live.line(job),
    ):
        assert "nan" not in text.lower().split()
        assert "None" not in text
        assert text.strip()


def test_what_a_stop_lost_is_shown_in_steps_or_in_time() -> None:
    silent = builders.allocation(3, 0, 0, cause="pause", lost_seconds=185.0)
    known = builders.allocation(3, 0, 0, cause="pause", lost_steps=15, lost_seconds=2.0)
    text = shown(render_job.allocation_table([silent, known]), width=140)
    assert "3 min 05 s of work" in text
    assert "15 steps (2 s of work)" in text


def test_what_a_script_that_tells_some_steps_lost_at_an_unknown_moment_is_shown_as_at_least() -> None:
    parts = {"save_seconds": None, "stop_seconds": None, "start_seconds": 2.0, "load_seconds": None, "told_every": 100}
    for stop_seconds, about in ((None, "at least"), (0.1, "about")):
        told = {**parts, "stop_seconds": stop_seconds}
        point = builders.allocation(3, 1, 0, cause="worker_lost", lost_steps=100, lost_seconds=60.0, pause_parts=told)
        assert f"{about} 100 steps (1 min 00 s of work)" in shown(render_job.allocation_table([point]), width=140)


def test_the_pause_of_a_script_is_shown_with_its_parts() -> None:
    parts = {"save_seconds": 0.3, "stop_seconds": 0.1, "start_seconds": 2.0, "load_seconds": None}
    point = builders.allocation(3, 2, 0, pause_seconds=2.5, pause_parts=parts)
    assert "2.50 s (save 0.3, stop 0.1, start 2.0)" in shown(render_job.allocation_table([point]), width=140)


def test_the_sizes_of_a_script_are_whole_in_a_narrow_terminal() -> None:
    parts = {"save_seconds": 12.3, "stop_seconds": 0.1, "start_seconds": 12.0, "load_seconds": 10.5}
    change = builders.allocation(
        140,
        12,
        0,
        pause_seconds=34.9,
        pause_parts=parts,
        lost_steps=11,
        lost_seconds=185.0,
        cause="coordinator_restart",
    )
    points = [builders.allocation(3, 1, 0, cause="start", pause_seconds=None), change]
    lines = shown(render_job.allocation_table(points), 80).splitlines()
    for whole in ("2 min 20 s", "12w+0p", "1 400", "coordinator", "12.3,", "10.5)", "11 steps", "min 05 s of"):
        assert any(whole in line for line in lines), whole


@pytest.mark.parametrize("width", [40, 80])
def test_no_table_cuts_words_without_a_sign(width: int) -> None:
    table = layout.columns_table("state", "node", "message")
    table.add_row("x" * 30, "y" * 50, "several words that may break")
    text = shown(table, width)
    assert ("x" * 30 in text, "y" * 50 in text) != (True, True), "there is no room for both"
    for letter, length in (("x", 30), ("y", 50)):
        assert letter * length in text or f"{letter}…" in text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_a_list_breaks_no_figure_and_no_usual_id(width: int) -> None:
    jobs = [builders.job(id="digits-resnet-abcd1234", step=12_345), builders.finished_job(id="digits-cnn-abcd1234")]
    text = shown(render_jobs.job_list(jobs, NOW), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for job in jobs:
        for whole in (job["id"], job["state"], wording.number(job["loss"], wording.LOSS_DIGITS)):
            assert whole in text
    assert ("12 345" in text) == (width > 100)


@pytest.mark.parametrize("width", [80, 100, 120, 160])
def test_labels_and_names_break_no_cell_of_a_list(width: int) -> None:
    spec = builders.job()["spec"] | {"labels": {"team": "vision", "a-rather-long-name": "with-a-long-value"}}
    jobs = [builders.job(spec=spec), builders.job(id="train-abcd1", name="curve", step=12_345)]
    text = shown(render_jobs.job_list(jobs, NOW), width)
    assert max(len(line) for line in text.splitlines()) <= width
    for whole in ("digits-mlp-x7k2p", "train-abcd1", "curve", "running", "24 s (18–33)", "2w+1p"):
        assert whole in text
    assert ("team=vision" in text) == (width >= 120)
    assert ("a-rather-long-name=with-a-l…" in text) == (width >= 120)


def test_another_name_than_that_of_the_id_is_shown() -> None:
    renamed, usual = builders.job(name="curve"), builders.job()
    long = builders.job(id=f"{'n' * 34}-x7k2p", name="n" * 63)
    assert "curve" in shown(render_jobs.job_list([renamed, usual], NOW))
    assert "Name " in shown(render_job.job_description(renamed, [], [], NOW))
    assert "curve" in live.line(renamed) + shown(live.view(Frame([renamed], None, 0)))
    assert " name " not in shown(render_jobs.job_list([usual, long], NOW))
    assert "Name " not in shown(render_job.job_description(usual, [], [], NOW))


def test_rounds_that_decided_the_same_are_one_line() -> None:
    times = [(NOW - timedelta(seconds=seconds)).isoformat() for seconds in (1, 3, 90, 91)]
    same = [builders.decision(at=at) for at in times[:3]]
    text = shown(render_explanation.decision_table([*same, builders.decision(at=times[3], message="other")], NOW), 120)
    assert text.count("save the most time") == 1
    assert "1 min 30 s – 1 s ago" in text
    assert "1 min 31 s ago" in text


def test_the_speed_of_now_does_not_stand_beside_a_time_left_that_looks_further() -> None:
    assert "steps/s" not in live.details(builders.job())
    assert "14.2 steps/s" in live.details(builders.job(remaining_seconds=None))


def test_a_job_without_tasks_is_not_said_to_learn() -> None:
    nothing = {"workers": 0, "servers": 0}
    for state in ("queued", "paused"):
        job = builders.job(state=state, wanted=nothing, running=nothing, remaining_seconds=None)
        assert live.expectation(job) == "waiting"


def test_where_nobody_knows_the_end_no_total_is_shown() -> None:
    assert "of 1 310" in live.details(builders.job())
    assert "of 1 310" not in live.details(builders.job(progress=None))


@pytest.mark.parametrize(("source", "is_told"), [("analysis", True), ("measured", False)])
def test_a_calculated_speed_is_told_to_be_one(source: str, is_told: bool) -> None:
    decision = builders.decision(forecast={"steps_per_second": 6490.0, "speed_from": source})
    text = shown(render_explanation.explanation(builders.explanation(), [decision], NOW), width=120)
    assert "steps/s" in text
    assert ("calculated from its layers: none is measured yet" in text) == is_told


def test_a_speed_that_was_predicted_before_a_change_of_size_names_the_size() -> None:
    has, had = {"workers": 4, "servers": 4, "gpu_type": None}, {"workers": 1, "servers": 1, "gpu_type": None}
    for previous, said in ((had, "71.6 steps/s with 1w+1p ("), (has, "71.6 steps/s (")):
        decision = builders.decision(forecast={"steps_per_second": 71.6}, previous=previous, allocation=has)
        assert said in shown(render_explanation.explanation(builders.explanation(), [decision], NOW), width=120)


def test_what_ends_a_script_is_named() -> None:
    decision = builders.decision(forecast={"rule": "command_ends"})
    assert "the script itself" in shown(render_explanation.explanation(builders.explanation(), [decision], NOW))
    found = render_predictions.prediction(builders.job(), builders.predictions(rule="command_ends"))
    assert "the script itself" in shown(found)


@pytest.mark.parametrize(
    ("rule", "low", "told"),
    [
        ("command_ends", 400.0, "the script itself"),
        ("command_ends", 167.0, "the script itself, if nothing does before"),
        ("max_epochs", 167.0, "max_epochs, if nothing does before"),
        ("target_loss", 167.0, "target_loss"),
        (None, 167.0, wording.UNKNOWN),
    ],
)
def test_what_may_end_a_job_before_its_limit_is_allowed_for(rule: str | None, low: float, told: str) -> None:
    assert wording.ends_by(rule, {"mean": 400.0, "low": low, "high": 400.0}) == told


def test_a_list_shows_what_tells_its_jobs_apart() -> None:
    spec = builders.job()["spec"]
    alike = [builders.job(), builders.job(id="other-abcd1234")]
    assert not {"project", "priority"} & set(shown(render_jobs.job_list(alike, NOW), 200).split())
    others = [builders.job(), builders.job(id="other-abcd1234", project="vision", spec={**spec, "priority": 4.0})]
    text = shown(render_jobs.job_list(others, NOW), 200)
    assert {"project", "vision", "priority", "4"} <= set(text.split())


@pytest.mark.parametrize("state", ["queued", "paused"])
def test_a_job_whose_tasks_are_on_their_way_is_said_to_start(state: str) -> None:
    nothing = {"workers": 0, "servers": 0}
    job = builders.job(state=state, wanted={"workers": 2, "servers": 1}, running=nothing)
    assert "starting" in shown(render_jobs.job_list([job], NOW), 200)
    assert live.line(job).count("starting") or "starting" in shown(live.view(Frame([job], builders.cluster(), 1.0)))
    assert "starting" not in shown(render_jobs.job_list([builders.job(state=state, wanted=nothing)], NOW), 200)
    ended = builders.finished_job(running=nothing)
    assert "starting" not in shown(render_jobs.job_list([ended], NOW), 200)


def test_names_and_messages_are_not_markup() -> None:
    job = builders.job(message="[red]x[/nonsense]", id="[bold]")
    decision = builders.decision(message="[/nonsense]")
    why = builders.explanation(message="[/sense]")
    assert "[red]x[/nonsense]" in shown(render_job.job_description(job, [], [], NOW))
    explained = shown(render_explanation.explanation(why, [decision], NOW))
    assert "[/nonsense]" in explained
    assert "[/sense]" in explained
    assert "[/nonsense]" in shown(live.view(Frame([job], None, 0)))


@pytest.mark.parametrize(
    "why",
    [
        builders.explanation(),
        builders.explanation(at=None, reason=None, gain=None, confidence=None),
        builders.explanation(gain=NAN, next_gain=float("inf"), message=""),
    ],
)
def test_every_explanation_can_be_shown(why: Any) -> None:
    for decisions in ([], [builders.decision()], [builders.decision(forecast={}, gain=NAN)] * 2):
        text = shown(render_explanation.explanation(why, decisions, NOW))
        assert "nothing: it grows already" in text
        assert "None" not in text
        assert "nan" not in text.lower().split()


def test_the_explanation_of_an_ended_job_has_no_blanks() -> None:
    nothing: Any = {"start_seconds": None, "finish_seconds": None, "finish_at": None}
    why = builders.explanation(state="succeeded", gain=None, next_gain=None, expected=nothing)
    text = shown(render_explanation.explanation(why, [builders.decision()], NOW))
    assert "—" not in text
    assert "Latest decisions" in text


def test_an_explanation_is_told_in_all_its_sentences() -> None:
    ends = {"start_seconds": None, "finish_seconds": {"mean": 300.0, "low": 240.0, "high": 480.0}, "finish_at": None}
    text = shown(
        render_explanation.explanation(builders.explanation(sentences=["One.", "Two [/so]."], expected=ends), [], NOW)
    )
    assert "One." in text
    assert "Two [/so]." in text
    assert "5.0 min (4.0–8.0)" in text


def test_live_view_shows_what_the_issue_asks_for() -> None:
    text = shown(live.view(Frame([builders.job()], builders.cluster(), 42.0)))
    for part in (
        "slots ■■■■■■□□ 6/8 used",
        "42 s",
        "62 %",
        "running",
        "step 812 of 1 310",
        "loss 0.3141",
        "24 s (18–33) left",
        "2w+1p",
        "GrantedMore: 2 workers and 1 server save the most time",
    ):
        assert part in text, text


def test_live_view_fits_into_80_columns() -> None:
    jobs = [builders.job(), builders.unknown_job(), builders.finished_job()]
    text = shown(live.view(Frame(jobs, builders.cluster(), 42.0, expected=["digits-cnn arrives in 3 s"])), width=80)
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "24 s (18–33) left" in text
    assert "digits-cnn arrives in 3 s" in text


def test_live_view_without_jobs_or_cluster() -> None:
    assert "No jobs" in shown(live.view(Frame([], None, 0.0)))
    assert "does not answer" in shown(live.view(Frame([], builders.cluster(), 0.0, "it does not answer")))


@pytest.mark.parametrize(
    ("used", "capacity", "marks"),
    [(0, 4, "□□□□"), (4, 4, "■■■■"), (0.5, 4, "■□□□"), (9, 4, "■■■■"), (0, 0, ""), (1, 1000, "")],
)
def test_slot_gauge(used: float, capacity: float, marks: str) -> None:
    assert live.slot_gauge(used, capacity).plain == marks


@pytest.mark.parametrize("total", [0.0, 0.5, 1.0])
def test_bar_is_full_only_at_success(total: float) -> None:
    assert live.bar(builders.job(progress=total)).completed == total
    assert live.bar(builders.finished_job(progress=None)).completed == 1.0
    assert live.bar(builders.unknown_job()).completed == 0.0


def test_lines_come_at_news_and_otherwise_every_few_seconds() -> None:
    console = Console(file=io.StringIO(), width=200, color_system=None)
    display = LineDisplay(console)
    bigger = builders.job(running={"workers": 4, "servers": 2, "gpu_type": None})
    waits = builders.job(state="paused", retries=1, retry_at="2026-01-02T03:05:35Z", last_error="ValueError")
    paused = builders.job(state="paused")
    jobs = [builders.job()] * 7 + [bigger] * 3 + [paused] + [waits] * 2 + [builders.finished_job()] * 20
    for second, job in enumerate(jobs):
        display.show(Frame([job], None, float(second)))
    output = console.file
    assert isinstance(output, io.StringIO)
    times = [line.partition("]")[0].strip("[ s") for line in output.getvalue().splitlines()]
    assert times == ["0.0", "5.0", "7.0", "10.0", "11.0", "13.0"]


def test_speeds_are_a_row_per_number_of_workers() -> None:
    text = shown(render_predictions.prediction(builders.job(), builders.predictions()))
    assert "p = 1" in text
    assert "p = 2" in text
    here = builders.job(running={"workers": 1, "servers": 1})
    assert " * " in shown(render_predictions.prediction(here, builders.predictions())), "also where nothing is bold"
    assert "5 min 00 s" in text
    unknown = {"steps_per_second": None, "remaining_seconds": None, "measured": None, "cost": None}
    for speeds in ([], [{"workers": 1, "servers": 1, **unknown}]):
        nothing = builders.predictions(speeds=speeds)
        assert "not known well enough" in shown(render_predictions.prediction(builders.job(), nothing))


def test_costs_and_choices_are_shown_where_there_are_prices() -> None:
    within, beyond = builders.choice(), builders.choice(workers=4, servers=2, keeps_limit=False)
    cost: dict[str, Any] = {
        "so_far": 0.25,
        "to_finish": builders.interval(1.5, 1.2, None),
        "cheapest_before_deadline": within,
        "fastest_under_budget": beyond,
        "worth_considering": [within],
    }
    text = shown(render_predictions.prediction(builders.job(), builders.predictions(cost=cost)))
    assert "1.50 (1.20–?)" in text
    assert "2w+1p: 2.5 min (1.7–3.3), 0.300 (0.200–0.400)" in text
    assert "none; 4w+2p comes nearest" in text
    assert "Sizes than which no other is both faster and cheaper" in text


def test_every_question_for_a_size_gets_an_answer() -> None:
    job, both = builders.job(), render_predictions.Asked(in_time=True, in_budget=True)
    text = " ".join(shown(render_predictions.prediction(job, builders.predictions(), both)).split())
    assert text.count("the service has no prices") == 2
    cost: dict[str, Any] = {
        "so_far": 0.25,
        "to_finish": None,
        "cheapest_before_deadline": None,
        "fastest_under_budget": None,
        "worth_considering": [],
    }
    unknown = shown(render_predictions.prediction(job, builders.predictions(cost=cost), both))
    assert unknown.count("too little is known") == 2
    outcome = {"steps": 9, "seconds": 1.0, "final_loss": 0.1, "metrics": {}, "cost": None, "review": []}
    ended = shown(render_predictions.prediction(job, builders.predictions(outcome=outcome), both))
    assert ended.count("the job has ended") == 2
    assert "Cheapest" not in shown(render_predictions.prediction(job, builders.predictions()))


def test_what_predictions_rest_on_is_said() -> None:
    learned = {"finished_runs": 3, "share": 0.8, "speeds_from": "similar jobs"}
    text = shown(render_predictions.prediction(builders.job(), builders.predictions(learned=learned)))
    assert "3 earlier runs (80 % of the weight)" in text
    assert "speeds of earlier jobs" in text
    assert "its own losses" in text
    script = builders.job()
    script["spec"] = {**script["spec"], "convergence": {"max_cost": 0.5}}
    assert "its own losses" not in shown(render_predictions.prediction(script, builders.predictions(learned=learned)))
    metric = {"name": "test_accuracy", "target": 0.95, "values": [{"step": 10, "value": 0.5}], "fitted": []}
    assert "0.5000, target 0.95" in shown(
        render_predictions.prediction(builders.job(), builders.predictions(metric=metric))
    )


def test_the_present_size_is_what_trains_while_a_change_is_under_way() -> None:
    sizes = {"running": {"workers": 1, "servers": 1, "gpu_type": None}, "wanted": {"workers": 2, "servers": 1}}
    text = " ".join(shown(render_predictions.prediction(builders.job(**sizes), builders.predictions())).split())
    assert "*: the present size; the change to 2w+1p is under way." in text
    assert "1 5 min 00 s *" in text
    same = builders.job(**sizes | {"wanted": sizes["running"]})
    kept = " ".join(shown(render_predictions.prediction(same, builders.predictions())).split())
    assert "*: the present size." in kept
    assert "time left at that size, with stops, evaluations and checkpoints as often as until now" in kept
    more = "The time left above counts waiting, later changes of size and jobs that may still be submitted, too."
    assert more in kept
    waits = " ".join(shown(render_predictions.prediction(builders.job(state="paused"), builders.predictions())).split())
    assert "time left at that size from its start on, with stops" in waits
    left = builders.predictions(remaining_seconds=builders.interval(300.0, 200.0, 500.0))
    assert more not in " ".join(shown(render_predictions.prediction(same, left)).split())


@pytest.mark.parametrize("still", [None, "no step came for 37 s, where one took 0.065 s"])
def test_the_sizes_of_a_job_that_stands_still_are_told_to_count_as_if_it_trained_on(still: str | None) -> None:
    text = " ".join(
        shown(render_predictions.prediction(builders.job(standstill=still), builders.predictions())).split()
    )
    said = "No step came for 37 s, where one took 0.065 s. All times and costs here count as if it trained on."
    assert (said in text) == (still is not None)
    assert ("as if it trained on" in text) == (still is not None)


def test_a_job_that_hung_and_waits_is_told_to_wait_and_what_it_did() -> None:
    hung, nothing = "its workers hung once, after step 40", {"workers": 0, "servers": 0}
    waits = {"state": "paused", "wanted": nothing, "running": nothing, "remaining_seconds": None, "standstill": hung}
    job = builders.job(**waits)
    assert render_jobs.left(job) == f"not known yet when it goes on; {hung}"
    owned = builders.job(**waits, reason="PausedByOwner", message="Paused by eva since 10:00")
    assert render_jobs.left(owned) == f"paused by eva: goes on after `optimus resume {job['id']}`; {hung}"
    expected = {"start_seconds": {"mean": 60.0, "low": 50.0, "high": 70.0}, "end_seconds": None}
    assert render_jobs.left(builders.job(**waits, expected=expected)) == hung, "the start has a line of its own"


def test_a_running_script_whose_lines_are_not_understood_says_so() -> None:
    job = a_script_that_just_began("acc 0.4")
    assert "no step was recognised" in shown(render_job.job_description(job, [], [], NOW), width=120)
    assert "no step was recognised" not in shown(render_job.job_description(job | {"profile": None}, [], [], NOW))
    assert "no step was recognised" not in shown(render_job.job_description(job | {"step": 5}, [], [], NOW))


def test_a_job_whose_time_left_is_unknown_says_that_it_takes_longer() -> None:
    assert render_jobs.left(builders.job(longer_than_predicted=True, remaining_seconds=None)) == "longer than predicted"


NO_SIZE = {"workers": 0, "servers": 0, "gpu_type": None}


@pytest.mark.parametrize(
    ("changes", "told", "watched"),
    [
        pytest.param(
            {"state": "paused", "reason": "PausedByOwner", "wanted": NO_SIZE, "message": None},
            "paused by its owner: goes on after `optimus resume digits-mlp-x7k2p`",
            "paused",
            id="paused by its owner",
        ),
        pytest.param(
            {
                "state": "paused",
                "reason": "PausedByOwner",
                "wanted": NO_SIZE,
                "message": "Paused by the operator bob since 2026-01-02 03:04:05 UTC: it gets nothing.",
            },
            "paused by the operator bob: goes on after `optimus resume digits-mlp-x7k2p`",
            "paused",
            id="paused by another",
        ),
        pytest.param(
            {
                "state": "paused",
                "reason": "PausedByOwner",
                "wanted": NO_SIZE,
                "message": None,
                "limit_reached": "the time of its limit is over",
            },
            "paused by its owner: ends after `optimus resume digits-mlp-x7k2p`, as the time of its limit is over",
            "paused",
            id="its time is over",
        ),
        pytest.param(
            {"state": "running", "reason": "PausedByOwner", "wanted": NO_SIZE, "message": None},
            "paused by its owner: goes on after `optimus resume digits-mlp-x7k2p`",
            "paused",
            id="its tasks leave",
        ),
        pytest.param({"state": "paused", "wanted": NO_SIZE}, "not known yet when it goes on", "waiting", id="paused"),
        pytest.param(
            {"state": "queued", "wanted": NO_SIZE, "first_step": None, "remaining_steps": None},
            "not known yet when it starts",
            "waiting",
            id="queued",
        ),
        pytest.param(
            {"state": "paused", "wanted": NO_SIZE, "retry_at": "2026-01-02T03:10:05Z"},
            "not known before it goes on after its error",
            "waiting",
            id="before a retry",
        ),
        pytest.param(
            {"steps_per_second": None}, "not known yet how long its steps take", "learning", id="of unknown speed"
        ),
        pytest.param({}, "not known yet: its speed is being measured", "learning", id="of a speed of its first steps"),
        pytest.param({"remaining_steps": None}, "not known yet how much is left", "learning", id="of unknown length"),
    ],
)
def test_a_job_of_unknown_time_left_says_what_is_not_known(changes: dict[str, Any], told: str, watched: str) -> None:
    job = builders.job(remaining_seconds=None, **changes)
    assert (render_jobs.left(job), live.expectation(job)) == (told, watched)
    assert render_jobs.time_left(job) == wording.UNKNOWN


def test_a_job_after_its_last_step_is_finishing_wherever_it_is_told() -> None:
    """Lists gave it a time left, which is as long as that since its last step."""
    job = builders.job(state="running", finishing=True, progress=1.0)
    assert {render_jobs.time_left(job), render_jobs.left(job), live.expectation(job)} == {"finishing"}


@pytest.mark.parametrize("state", ["queued", "running", "paused"])
def test_a_job_that_is_being_cancelled_neither_starts_nor_has_time_left(state: str) -> None:
    job = builders.job(state=state, directive="cancel", reason="Cancelling")
    assert {render_jobs.time_left(job), render_jobs.left(job), live.expectation(job)} == {"being cancelled"}
    assert render_jobs.state_of(job).plain == state


def test_a_job_that_took_longer_than_predicted_says_so() -> None:
    job = builders.job(longer_than_predicted=True)
    assert "24 s (18–33) left, longer than predicted" in shown(render_job.job_description(job, [], [], NOW))
    assert live.expectation(job) == "24 s (18–33) left, longer than predicted"
    expected = {"start_seconds": {"mean": 24.0, "low": 18.0, "high": 33.0}}
    words = "may be paused in about 30 s"
    cut = builders.job(expected={"start_seconds": None, "cut": {"pauses": True, "seconds": 30.0, "words": words}})
    assert f"24 s (18–33) left; {words}" in shown(render_job.job_description(cut, [], [], NOW))
    assert live.expectation(cut).endswith(f"; {words}")
    waits = builders.job(state="queued", wanted={"workers": 0, "servers": 0}, expected=expected)
    assert live.expectation(waits) == render_jobs.time_left(waits) == "starts in 24 s (18–33)"
    assert "longer" not in shown(render_job.job_description(builders.job(), [], [], NOW))


def test_how_predictions_turned_out() -> None:
    scores: list[Any] = [
        {"kind": "steps", "part": "first step", "promises": 12, "held": 0.5, "median_error_percent": 31.4},
        {"kind": "seconds", "part": "50 %", "promises": 4, "held": 1.0, "median_error_percent": 8.0},
    ]
    tasks: list[Any] = [{"task": "m:f", "scores": scores}, {"task": "other:task", "scores": scores[:1]}]
    text = shown(render_tables.scorecard({"scores": scores, "tasks": tasks}))
    for words in ("steps left", "first step", "12", "50 %", "31 %", "time left", "100 %", "m:f", "other:task"):
        assert words in text
    alone = shown(render_tables.scorecard({"scores": scores, "tasks": tasks[:1]}, "m:f"))
    assert "other:task" not in alone
    assert "No prediction" in shown(render_tables.scorecard({"scores": [], "tasks": []}))
    assert "50 % of 12" in text, "of each kind as many as were judged of it"
    assert "100 % of 4" in text


def test_the_queue_says_who_waits_why_and_for_how_long() -> None:
    expected: Any = {"start_seconds": {"mean": 300.0, "low": 120.0, "high": 600.0}}
    jobs = [builders.queued_job(expected=expected), builders.queued_job(owner=None)]
    text = shown(render_tables.queue(jobs, NOW), 130)
    for words in ("digits-mlp-x7k2p", "vision", "ada", "5.0 min (2.0–10.0)", "—", "minimum"):
        assert words in text
    expected["start_seconds"] = {"mean": 0.0, "low": 0.0, "high": 0.3}
    assert "a moment" in shown(render_tables.queue([builders.queued_job(expected=expected)], NOW))
    assert "No job waits." in shown(render_tables.queue([], NOW))
    expected["computed_at"] = (NOW - timedelta(seconds=4)).isoformat()
    anew = "Each round decides anew: a smaller, shorter or more urgent job may start before those above it."
    told = " ".join(shown(render_tables.queue(jobs, NOW), 130).split())
    assert f"Starts are told by the look at the queue 4 s ago. {anew}" in told
    assert anew not in shown(render_tables.queue(jobs[:1], NOW), 130), "there is none behind it"


def test_a_narrow_queue_keeps_the_words_of_its_reasons() -> None:
    expected: Any = {"start_seconds": {"mean": 300.0, "low": 120.0, "high": 600.0}}
    why = "not even its minimum fits beside jobs that train or go first"
    jobs = [builders.queued_job(expected=each, why=why) for each in (expected, None)]
    assert "owner" not in shown(render_tables.queue(jobs, NOW), 80)
    for width in range(70, 130):
        for rows in (jobs, jobs[1:]):
            text = shown(render_tables.queue(rows, NOW), width)
            assert set(why.split()) <= set(text.split()), width


def test_who_used_how_much() -> None:
    text = shown(render_tables.usage(builders.usage()))
    for words in ("vision", "ada", "v100", "40.00", "81.25", "all", "2026-11 (UTC), until"):
        assert words in text
    free: Any = {"worker_hours": 1.0, "core_hours": 1.0, "gpu_hours": 0.0, "cost": None}
    line: Any = {**free, "project": "vision", "owner": None, "gpu_type": None}
    text = shown(render_tables.usage(builders.usage(total=free, lines=[line])))
    assert "cost" not in text
    assert "none" in text
    assert "Nothing was used in 2026-11." in shown(render_tables.usage(builders.usage(lines=[])))


def test_of_an_ended_job_predictions_stand_beside_what_came() -> None:
    review = [
        {
            "at": builders.CREATED,
            "step": 100,
            "part": 0.1,
            "total_steps": builders.interval(1200.0, 900.0, 1500.0),
            "error_percent": 20.0,
            "held": True,
            "remaining_seconds": builders.interval(120.0, 90.0, 150.0),
            "true_remaining_seconds": 200.0,
            "seconds_error_percent": -40.0,
            "seconds_held": False,
        }
    ]
    outcome = {
        "steps": 1000,
        "seconds": 110.0,
        "final_loss": 0.125,
        "metrics": {"accuracy": 0.9},
        "cost": 1.5,
        "review": review,
    }
    ended = builders.job(state="succeeded")
    silent = builders.job(state="succeeded", spec={"command": ["python", "train.py"]})
    untold = builders.predictions(outcome={**outcome, "steps": 0, "review": []})
    assert "succeeded, no step told" in shown(render_predictions.prediction(silent, untold))
    text = shown(render_predictions.prediction(ended, builders.predictions(outcome=outcome)))
    for words in (
        "succeeded after 1 000 steps",
        "0.1250, the mean of its last steps",
        "1 200",
        "(900–1 500)",
        "+20 %",
        "-40 %",
        "3.3 min",
        "1w+1p",
        "5.10/s",
        "1.50",
    ):
        assert words.replace(" ", "") in text.replace("\u2009", "").replace("\u202f", "").replace(" ", ""), words


def test_nodes() -> None:
    cordoned = builders.node(schedulable=False, capacity={"cpu": 4, "memory_bytes": 0, "gpus": {"a100": 8, "k80": 0}})
    text = shown(render_tables.node_list([builders.node(), cordoned]))
    assert "6/8" in text
    assert "8 × a100" in text
    assert "not schedulable" in text
    assert "no nodes" in shown(render_tables.node_list([]))


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ({}, "—"),
        ({"target_loss": 0.1, "loss_decrease": None}, "the loss reaches 0.1"),
        (
            {"target_metric": {"name": "accuracy", "at_least": 0.9, "at_most": None}, "max_cost": 2.5},
            "accuracy rises to 0.9, or it has cost 2.5",
        ),
        (
            {"loss_decrease": {"below": 0.01, "patience_epochs": 2}, "max_epochs": 12.0},
            "the loss falls by less than 1 % per epoch (2 epochs in a row), or 12 epochs are done",
        ),
        (
            {"max_epochs": 0.5, "max_steps": 100_000_000, "max_seconds": 3600.1},
            "0.5 epochs are done, or 100 000 000 steps are done, or 3 600.1 seconds are done",
        ),
    ],
)
def test_convergence_rules_read_as_sentences(rule: dict[str, Any], sentence: str) -> None:
    assert render_job.convergence(rule) == sentence


def test_tasks_show_what_each_takes_of_its_machine() -> None:
    gpu = {
        "at": builders.CREATED,
        "cpu_cores": 1.5,
        "memory_bytes": 2**30,
        "gpu_utilization": 0.4,
        "gpu_memory_bytes": 2**31,
    }
    old = {**builders.task("server")["usage"], "at": (NOW - timedelta(seconds=300)).isoformat()}  # type: ignore[dict-item]
    tasks = [
        builders.task("worker", gpu_type="v100", usage=gpu),
        builders.task("server", rank=1, node="[red]node", usage=old),
        builders.task("coordinator", usage=None),
    ]
    lines = [line.split() for line in shown(render_tables.task_table(tasks, NOW), width=120).splitlines()]
    rows = {line[0]: " ".join(line) for line in lines if line}
    assert rows["worker"].endswith("1.50 1.0 GiB v100 40 %, 2.0 GiB")
    assert rows["server"].startswith("server 1 [red]node")
    assert rows["server"].endswith("1.50, 5 min 00 s ago 1.5 GiB"), "an old figure is told as such"
    assert rows["coordinator"].endswith(f"{wording.UNKNOWN} {wording.UNKNOWN}")


def test_learning_rates_are_shown_where_they_are_told() -> None:
    assert "Learning rate" not in shown(render_job.job_description(builders.job(), [], [], NOW))
    job = builders.job(learning_rate=0.1)
    assert re.search(r"Learning rate +0\.100\s*$", shown(render_job.job_description(job, [], [], NOW)), re.MULTILINE)
    assert "Learning rate" not in shown(render_predictions.prediction(builders.job(), builders.predictions()))
    told: dict[str, Any] = {"learning_rates": [{"step": 9.0, "rate": 0.1}]}
    text = shown(render_predictions.prediction(builders.job(), builders.predictions(**told)))
    assert re.search(r"Learning rate +0\.100\s*$", text, re.MULTILINE)
    told["planned_rates"] = [{"step": 1199.0, "rate": 0.1}, {"step": 1200.0, "rate": 0.001}]
    text = shown(render_predictions.prediction(builders.job(), builders.predictions(**told)))
    assert re.search(r"Learning rate +0\.100, planned 0\.00100 at step 1.200\s*$", text, re.MULTILINE)


def test_a_script_says_whether_its_size_can_change() -> None:
    """Where its owner allows several sizes; `--resumes` is the owner's word for it."""
    profile: Any = {"learned_from": "printed", "resumes": None}
    one, several = {"min": 1, "max": 1}, {"min": 1, "max": 4}
    assert render_job.learned_from(profile, {"workers": one}) == "what it prints"
    assert render_job.learned_from(profile, {"workers": several}) == (
        "what it prints; its size stays until it is known to resume (--resumes)"
    )
    assert "so its size can change" in render_job.learned_from(profile, {"workers": several, "resumes": True})
    began_anew: Any = {**profile, "resumes": False}
    assert render_job.learned_from(began_anew, {"workers": several}) == (
        "what it prints; it began anew when it was started again, so its size stays"
    )
    assert render_job.learned_from(began_anew, {"workers": several, "resumes": True}) == (
        "what it prints; it is said to resume (--resumes), so its size can change, but it began anew when it was "
        "started again"
    )
    resumes: Any = {**profile, "resumes": True}
    assert "so its size stays" in render_job.learned_from(resumes, {"workers": several, "resumes": False})


def test_tables_of_explanations_fit_into_80_columns() -> None:
    """Nothing is cut off, and no figure is broken."""
    moments = [(NOW - timedelta(seconds=seconds)).isoformat() for seconds in (1461, 1506)]
    waited = "Waits: there is no room for 1 worker and 1 server beside jobs that train or go first"
    decisions = [builders.decision(at=at, reason="WaitingForResources", message=waited) for at in moments]
    lines = shown(render_explanation.decision_table(decisions, NOW), 80).splitlines()
    columns = [lines[1].index(name) for name in ("when", "message")]
    told = [re.sub(" +", " ", " ".join(line[at:].split("  ")[0] for line in lines[3:])).strip() for at in columns]
    assert told == ["25 min 06 s – 24 min 21 s ago", waited]
    total, left = interval(2395.0, 2117.0, 12395.0), interval(136.0, 120.0, 2000.0)
    point: Any = {
        "part": 0.25, "at": moments[0], "step": 10, "total_steps": total, "error_percent": -12.3, "held": True,
        "remaining_seconds": left, "true_remaining_seconds": 111.0, "seconds_error_percent": 33.0,
        "seconds_held": False,
    }  # fmt: skip
    text = shown(render_predictions.review_table([point], 2395), 80)
    assert max(map(len, text.splitlines())) <= 80
    for words in ("2 395", "(2 117–12 395)", "2.3 min", "(2.0–33.3)", "1.9 min", "+33 %", "no", "true total"):
        assert words in text


def test_until_when_a_silent_worker_is_waited_for_is_told_where_its_job_is_described() -> None:
    words = "8 s ago: w-0 has not answered for 30 s. If it does not answer within 9 min 52 s, it is ended."
    text = shown(render_job.job_description(builders.job(awaited=words), [], [], NOW), width=200)
    assert words in text
    assert "Silence" not in shown(render_job.job_description(builders.job(), [], [], NOW))


@pytest.mark.parametrize(
    ("measured", "silent", "told"),
    [
        (9.8, None, "9.80 steps/s lately"),
        (9.8, 8.2, "9.80 steps/s until 8 s ago"),
        (None, None, wording.UNKNOWN),
    ],
)
def test_a_speed_is_told_with_its_age_where_the_next_step_is_late(
    measured: float | None, silent: float | None, told: str
) -> None:
    assert render_job.speed(builders.job(steps_per_second=measured, silent_seconds=silent)) == told


@pytest.mark.parametrize(
    ("low", "came", "held", "time", "took"),
    [
        (24.2, 23.8, False, "28.4 s (24.2–37.1)", "23.8 s"),
        (23.8, 24.2, True, "28 s (24–37)", "24 s"),
        (24.0, 23.99, False, "28.40 s (24.00–37.10)", "23.99 s"),
        (24.0, 37.4, False, "28.4 s (24.0–37.1)", "37.4 s"),
        (24.0, 5000.0, False, "28 s (24–37)", "83.3 min"),
        (None, 23.0, True, "28 s (?–37)", "23 s"),
    ],
)
def test_a_prediction_that_is_not_held_is_not_shown_as_if_it_were(
    low: float | None, came: float, held: bool, time: str, took: str
) -> None:
    interval: Any = {"mean": 28.4, "low": low, "high": 37.1}
    assert wording.judged_duration(interval, came, held) == (time, took)
    point: Any = {
        "part": 0.25, "total_steps": None, "remaining_seconds": interval, "true_remaining_seconds": came,
        "seconds_held": held,
    }  # fmt: skip
    text = " ".join(shown(render_predictions.review_table([point], 2395), 80).split())
    assert took in text


@pytest.mark.parametrize(
    ("high", "came", "held", "said"),
    [(1200.4, 1200, True, "1 000 (900–1 200)"), (1199.6, 1200, False, "1 000 (900.0–1 199.6)")],
)
def test_steps_that_an_interval_does_not_hold_are_not_shown_within_it(
    high: float, came: int, held: bool, said: str
) -> None:
    assert wording.judged_count({"mean": 1000.0, "low": 900.0, "high": high}, came, held) == said


def test_no_text_of_a_job_moves_the_cursor_or_sets_a_title(capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b[2J\x1b]0;pwn\x07\u202ename\x9b1m\r"
    console = output.console()
    console.print(Panel(Text(f"{evil} [bold]", style="red")))
    output.print_text(evil)
    told = capsys.readouterr().out
    assert "name" in told
    assert not set("\x1b\x07\u202e\x9b\r") & set(told)


def test_text_of_users_is_shown_as_it_is() -> None:
    """No brackets of a pattern or a message are taken for markup."""
    text = r"cost=\[(?P<loss>[-+.\deE]+)\] [bold] [/x]"
    event = {"at": "2026-01-02T03:04:05Z", "type": "Note", "message": text, "data": {}}
    table = render_job.event_table([event], NOW)  # type: ignore[list-item]
    facts = layout.facts_table([("Pattern", text)])
    assert all(text in shown(each, width=160) for each in (table, facts))


def test_an_explanation_says_by_which_look_the_start_is_told() -> None:
    start = {"mean": 85.0, "low": 55.0, "high": 120.0}
    looked = (NOW - timedelta(seconds=4)).isoformat()
    why: Any = builders.explanation(state="queued")
    why |= {"expected": {**why["expected"], "start_seconds": start, "computed_at": looked}}
    assert "by the look at the queue 4 s ago" in " ".join(shown(render_explanation.explanation(why, [], NOW)).split())
    why["expected"] |= {"start_seconds": None}
    assert "look at the queue" not in shown(render_explanation.explanation(why, [], NOW))


def test_a_decision_of_unknown_age_is_told_without_one() -> None:
    why = builders.explanation(state="running", reason="Cancelling", at=None)
    assert "Decided Cancelling \n" in re.sub(" +", " ", shown(render_explanation.explanation(why, [], NOW)))
