"""Why a job has what it has: told by a service that really decided it, and by hand-made rows at the edges."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.service.api.api_harness import Api
from tests.service.api.test_views import job
from tests.service.loop.loop_world import World
from tests.service.seeing.explain_page import BEGIN, DOCUMENT, END, as_markdown
from tests.service.store.store_builders import a_decision, a_forecast, a_membership

from optimus_contract import answers
from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.membership import PauseParts
from optimus_scheduler.ahead.cuts import GUARANTEE, SOONER
from optimus_scheduler.ahead.queue import ExpectedCut
from optimus_scheduler.allocate.allocate_with_quotas import NO_END_HELPS, RIGHT_OF_OTHERS
from optimus_scheduler.allocate.optimus.guarantees import Turn
from optimus_scheduler.allocate.policies import POLICIES
from optimus_scheduler.allocate.staying import closed_words
from optimus_scheduler.explain import BETTER_USED, GOES_FIRST
from optimus_scheduler.lifecycle import PauseRequested, TooManyFailures
from optimus_scheduler.model import (
    NOTHING,
    Allocation,
    Decision,
    Directive,
    Interval,
    JobState,
    Node,
    Nodes,
    Quota,
    Reason,
    Resources,
)
from optimus_scheduler.quota_words import SHRUNK, USED_UP
from optimus_scheduler.what_if import MEASUREMENT, NEXT_ROUND, Behind, WithOneEnd
from optimus_service.api.jobs.awaited import is_over
from optimus_service.api.jobs.explanation import _WARNINGS
from optimus_service.api.jobs.queue import queued_body
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.explain import explanation_of
from optimus_service.insight.explanations.queue import ORDERS, Queued, in_queue
from optimus_service.insight.explanations.start_and_end import started_with_ends
from optimus_service.insight.format import moment
from optimus_service.insight.jobs.progress import _after_retry, expected_times, times_of
from optimus_service.insight.jobs.reasons import TEXTS, waiting_words
from optimus_service.insight.jobs.why import explain
from optimus_service.loop.exits import COORDINATOR_UNREACHABLE, WORKER_HUNG
from optimus_service.loop.silent_coordinators import COORDINATOR_SILENT
from optimus_service.observe.divergence import LOSS_NOT_FINITE
from optimus_service.observe.standstills import REPLACING, Standstill
from optimus_service.observe.unsaved_work import LastStep
from optimus_service.push.stream_state import job_line
from optimus_service.requests import checked
from optimus_service.store.records import (
    Awaited,
    EventRecord,
    ExpectedTimesRecord,
    JobRecord,
    MembershipRecord,
)
from optimus_service.store.rounds.forecasts import from_json


def explained(world: World, job_id: str) -> answers.Explanation:
    """What the service would answer now."""
    repository = world.repository
    active = {each.id: each for each in repository.jobs.active()}
    decisions = repository.rounds.latest_decisions([job_id, *active])
    return explanation_of(
        Case(
            job=repository.jobs.get(job_id),
            decision=decisions.get(job_id),
            now=world.clock(),
            memberships=repository.memberships.of_job(job_id),
            others=active,
            decisions=decisions,
            queue=in_queue(active.values(), decisions, world.clock()),
            policy="optimus",
        )
    )


# --- from real decisions ---------------------------------------------------------------------------------------------


def test_a_waiting_job_says_when_it_starts_and_ends(world: World) -> None:
    big: dict[str, Any] = {"workers": {"min": 6, "max": 6}, "servers": {"max": 1}}
    limited = {"convergence": {"max_steps": 60}}
    world.looks_ahead = True
    world.submit("first", **big, **limited)
    world.live_until("its end is predicted", lambda: explained(world, "first").expected.computed_at is not None)
    world.submit("second", **big, **limited)
    world.submit("third", **big)
    world.round()
    first, second, third = (explained(world, job_id) for job_id in ("first", "second", "third"))
    assert second.reason == "WaitingForResources"
    start, end = second.expected.start_seconds, first.expected.finish_seconds
    assert start is not None
    assert end is not None
    assert start.mean == pytest.approx(end.mean, rel=0.5, abs=20.0)
    assert any("expected to start in" in each for each in second.sentences)
    assert third.expected.finish_seconds is None, "nothing is known of its length"
    assert "In the queue it is now number 1 of 2." in second.sentences
    assert (
        "In the queue it is now number 2 of 2, where those whose start cannot be said stand last, by priority and age, "
        "behind second (second). Each round decides anew who starts (policy `optimus`): first those that a deadline "
        "or a quota gives a right to start, and those that have waited too long; then those that are soon done or have "
        "a high priority, and as far as it is in doubt how long they take, those that have had least so far; "
        "a small one may start where a larger one does not fit."
    ) in third.sentences


def test_what_is_too_old_is_not_shown(world: World) -> None:
    world.looks_ahead = True
    world.submit("first", convergence={"max_steps": 5000})
    world.live_until("its end is predicted", lambda: explained(world, "first").expected.finish_seconds is not None)
    assert any("jobs that may still be submitted included" in each for each in explained(world, "first").sentences)
    world.clock.now += 3600.0
    found = explained(world, "first")
    assert found.expected.computed_at is None
    assert any("if it keeps what it has" in each for each in found.sentences)


def test_an_end_that_no_calendar_has_is_said_in_seconds_only(world: World) -> None:
    """The largest limit that is accepted: at a few steps a second it lies beyond the year 9999."""
    world.submit("endless", convergence={"max_steps": 10**12})
    world.live_until("its end is predicted", lambda: explained(world, "endless").expected.finish_seconds is not None)
    expected = explained(world, "endless").expected
    assert expected.finish_seconds is not None
    assert expected.finish_seconds.mean > 8000 * 365 * 86_400
    assert expected.finish_at is None


def test_a_job_that_waits_for_a_retry_starts_no_sooner(world: World) -> None:
    world.looks_ahead = True
    world.submit("retried")
    world.live_until("it trains", lambda: world.repository.jobs.get("retried").state is JobState.RUNNING)
    world.train(2)
    world.repository.jobs.advance("retried", TooManyFailures("broken", "OSError: stale file handle"), world.clock())
    world.round()
    world.clock.now += 5.0
    found = explained(world, "retried")
    retry_at = world.repository.jobs.get("retried").retry_at
    assert retry_at is not None
    assert found.expected.start_seconds is not None
    assert found.expected.start_seconds.low is not None
    assert found.expected.start_seconds.low >= retry_at - world.clock() - 1e-6
    assert any(each.startswith("It may go on in about 25 s, ") for each in found.sentences)
    assert not any("next rounds" in sentence for sentence in found.sentences)


def test_a_job_that_waits_for_a_retry_says_from_where_it_goes_on() -> None:
    """It trained for less than lies between two checkpoints: all that it made may be made again."""
    waits = a_record(state=JobState.PAUSED, step=311, wanted=NOTHING, started_at=1.0, wanted_at=21.0, retry_at=51.0)
    (told,) = [
        each for each in explanation_of(Case(job=waits, decision=None, now=30.0)).sentences if "go on in" in each
    ]
    assert "from its last checkpoint, which may be of step 0 of 311 (it trained for less than the 30 s" in told


@pytest.mark.parametrize(
    ("later", "told"),
    [
        ([], "which may be of step 0 of 423 (it trained for less than the 30 s between two)"),
        (
            [("pause", 264, 0, 10.0)],
            "which may be of step 264 of 423 (it trained for less than the 30 s between two aft",
        ),
        (
            [("pause", 264, 0, 10.0), ("resume", 264, 0, 12.0)],
            "which may be of step 264 of 423 (it trained for less than the 30 s between two after that)",
        ),
        ([("worker_lost", 300, 23, 12.0)], "which may be of step 300 of 423"),
        ([("rescale", 300, 0, 12.0)], "which may be of a step before 423"),
        (
            [("pause", 264, 0, 8.0), ("resume", 264, 0, 9.0), ("rescale", 300, 0, 12.0)],
            "of step 264 or a later one of 423",
        ),
        ([("resume", 264, 0, -40.0)], "of step 264 or a later one of 423"),
        ([("pause", 423, 0, 10.0)], "from its last checkpoint, of step 423;"),
    ],
)
def test_what_pauses_saved_is_known_of_the_last_checkpoint(later: list[tuple[str, int, int, float]], told: str) -> None:
    record = a_record(state=JobState.CANCELLED, step=423, started_at=1.0, finished_at=21.0, wanted=NOTHING)
    memberships = [a_membership(at=1.0)] + [
        a_membership(epoch=epoch, cause=cause, step=step, lost_steps=lost, at=at)
        for epoch, (cause, step, lost, at) in enumerate(later, 2)
    ]
    assert told in explain(record, None, 30.0, memberships).what_would_change_it
    unread = explain(replace(record, membership_epoch=len(memberships)), None, 30.0).what_would_change_it
    assert ("may be of step 0 of 423" in unread) == (not later)


@pytest.mark.parametrize(("first", "starts"), [(None, None), (4.0, 9.0), (130.0, 130.0)])
def test_a_retry_starts_with_the_later_of_its_time_and_the_first_room(
    first: float | None, starts: float | None
) -> None:
    at = None if first is None else Interval(100.0 + first, 100.0 + first, 100.0 + first)
    times = ExpectedTimesRecord(job_id="job-1", at=100.0, valid_until=200.0, start=at, end=None)
    found = _after_retry(expected_times(times, 100.0, waits=True), 109.0, 100.0)
    start = None if found is None else found.start_seconds
    assert (None if start is None else (start.mean, start.low, start.high)) == (starts and (starts, starts, starts))


def test_a_job_that_grew_says_what_that_cost_and_bought(world: World) -> None:
    world.submit("job-1")
    world.live_until("it has grown", lambda: world.repository.jobs.get("job-1").rescales > 0)
    world.train(30)
    before, after = world.repository.memberships.of_job("job-1")[-2:]
    found, now = explained(world, "job-1"), world.repository.jobs.get("job-1")
    effect = found.last_rescale
    assert effect is not None
    assert now.step_at is not None
    assert effect.stopped_seconds == 0.5
    slow = (after.step + after.lost_steps - before.step) / (after.at - 0.5 - before.at)
    made, seconds = now.step - after.step, now.step_at - after.at
    assert (effect.steps_per_second_before, effect.steps_per_second_after) == pytest.approx((slow, made / seconds))
    assert effect.saved_seconds == pytest.approx(made / slow - seconds - 0.5)
    instead = f"{made / seconds:.3g} steps per second instead of {slow:.3g}"
    assert any(f"it makes {instead}" in each for each in found.sentences)
    world.repository.jobs.advance("job-1", PauseRequested(has_tasks=True), world.clock())
    world.live_until("it is paused", lambda: world.repository.jobs.get("job-1").running.is_empty)
    assert any(
        re.search(r"it made [\d.]+ steps per second instead of", each) for each in explained(world, "job-1").sentences
    )


@pytest.mark.parametrize(
    ("later", "n_steps"),
    [
        ([], 300),
        ([("coordinator_restart", 200, 0)], 300),
        ([("coordinator_restart", 200, 0), ("worker_lost", 250, 40)], 340),
        ([("replaced", 200, 0)], 300),
        ([("resume", 200, 10)], 110),
    ],
)
def test_a_change_of_size_counts_for_the_steps_made_with_its_size(
    later: list[tuple[str, int, int]], n_steps: int
) -> None:
    memberships, at = [a_membership(at=5.0)], 5.0
    reached, speed = 0, 12.0
    for number, (cause, step, lost) in enumerate([("rescale", 100, 0), *later], 2):
        at += (step + lost - reached) / speed + 1.0
        formed: dict[str, Any] = {"at": at, "step": step, "cause": cause, "pause_seconds": 1.0, "lost_steps": lost}
        memberships.append(a_membership(epoch=number, workers=("w",), **formed))
        reached, speed = step, 4.0
    record = a_record(wanted=Allocation(1, 1), step=400, step_at=at + (400 - reached) / speed)
    found = explanation_of(Case(job=record, decision=None, now=4000.0, memberships=memberships)).last_rescale
    assert found is not None
    assert (found.steps_per_second_before, found.steps_per_second_after) == pytest.approx((12, 4))
    assert found.saved_seconds == pytest.approx(n_steps / 12 - n_steps / 4 - 1.0), "however long a step was awaited"


def test_a_size_that_a_job_had_before_does_not_count_for_what_its_last_change_bought() -> None:
    """From one worker to two, while others load the machine twice as much as when it had two before."""
    way = [(5.0, 0, 2), (25.0, 400, 1), (45.0, 500, 2)]
    memberships = [
        a_membership(epoch=epoch, at=at, step=step, workers=tuple("vw"[:workers]), pause_seconds=0.0)
        for epoch, (at, step, workers) in enumerate(way, 1)
    ]
    record = a_record(running=Allocation(2, 1), wanted=Allocation(2, 1), step=700, step_at=65.0)
    found = explanation_of(Case(job=record, decision=None, now=65.0, memberships=memberships)).last_rescale
    assert found is not None
    assert (found.steps_per_second_before, found.steps_per_second_after) == pytest.approx((5, 10))
    assert found.saved_seconds == pytest.approx(200 / 5 - 20)


def test_the_parts_of_a_scripts_pause_are_told() -> None:
    parts: dict[str, Any] = {"save_seconds": 1.0, "stop_seconds": 0.5, "start_seconds": 3.0, "load_seconds": None}
    after = a_membership(epoch=2, at=15.0, pause_seconds=5.0, pause_parts=parts)
    before = a_membership(workers=("w",))
    case = Case(job=a_record(wanted=Allocation(2, 0)), decision=None, now=20.0, memberships=[before, after])
    found = explanation_of(case)
    assert found.last_rescale is not None
    assert found.last_rescale.pause_parts == PauseParts(**parts)
    assert any(
        "stopped training for 5.0 s (saving 1.0 s, stopping 0.5 s, starting 3.0 s)" in s for s in found.sentences
    )


def test_jobs_that_compete_say_against_whom(world: World) -> None:
    for job_id in ("one", "two", "three"):
        world.submit(job_id, workers={"max": 16}, servers={"max": 16})

    def with_a_rival() -> list[answers.Explanation]:
        found = (explained(world, job_id) for job_id in ("one", "two", "three"))
        return [each for each in found if each.marginal is not None and (each.next_gain or 0.0) > 0]

    world.live_until("tasks were granted by gain", lambda: bool(with_a_rival()))
    for found in with_a_rival():
        assert found.marginal is not None
        assert found.marginal.job_id != found.job_id
        assert any(found.marginal.name in each and "Its next task would gain" in each for each in found.sentences)


def test_an_ended_job_tells_its_story(world: World) -> None:
    world.submit("job-1")
    world.live_until("it has ended", lambda: world.state() is JobState.SUCCEEDED)
    found = explained(world, "job-1")
    assert found.state == "succeeded"
    assert (found.marginal, found.expected.start_seconds, found.expected.finish_seconds) == (None, None, None)
    story = " ".join(found.sentences)
    assert "from submission to end" in story
    assert "It last had" in story
    assert "its training stood still for" in story
    assert BY in story


def test_the_api_explains_before_and_after_a_round(api: Api) -> None:
    job_id = api.submit(name="digits")
    before = api.get(f"/v1/jobs/{job_id}/explanation").json()
    assert before["sentences"][0] == before["message"]
    assert (before["expected"]["start_seconds"], before["expected"]["computed_at"]) == (None, None)
    assert any("cannot be said yet: that is worked out after each round" in each for each in before["sentences"])


# --- from rows -------------------------------------------------------------------------------------------------------


def a_record(job_id: str = "job-1", **changes: Any) -> JobRecord:
    spec = checked(JobSpec, {"name": "job", "task": "m:f", **changes.pop("spec", {})})
    values = {"created_at": 0.0, "rescales": 0, "running": NOTHING, "spec": write(spec)}
    return job(id=job_id, name=job_id, **values | changes)


def a_running_case(**changes: Any) -> Case:
    decision = a_decision("job-1", round_id=7, next_gain=0.1, reason="ClusterFull", allocation=Allocation(2, 1))
    return Case(job=a_record(wanted=Allocation(2, 1)), decision=decision, now=10.0, **changes)


@pytest.mark.parametrize(("running", "is_told"), [((1, 1), True), ((2, 1), False), ((0, 0), False)])
def test_a_change_that_is_under_way_is_told(running: tuple[int, int], is_told: bool) -> None:
    case = a_running_case()
    found = explanation_of(replace(case, job=replace(case.job, running=Allocation(*running)))).sentences
    told = "It trains with 1 worker and 1 server as yet: the change to 2 workers and 1 server is under way."
    assert (told in found) == is_told


def test_other_jobs_are_told_of_only_where_there_are_some() -> None:
    alone = a_running_case()
    assert "One more task would make it faster." in explanation_of(alone).sentences
    among = replace(alone, others={"job-2": a_record("job-2")})
    said = "One more task would make it faster; no other job was given more than its smallest size."
    assert said in explanation_of(among).sentences


@pytest.mark.parametrize(
    ("spec", "after"),
    [
        ({}, "replaced after 60 s or more (`--hang-seconds` of a submission sets another time)"),
        ({"hang_seconds": 90.0}, "replaced after 90 s"),
        (
            {"hang_seconds": 90.0, "task": None, "command": ["python", "train.py"]},
            "ended after 90 to 102 s (later on a busy machine), and another started in its place",
        ),
        (
            {"hang_seconds": 3.0, "task": None, "command": ["python", "train.py"]},
            "ended after 10 to 22 s (later on a busy machine), and another started in its place",
        ),
    ],
)
def test_a_job_that_stands_still_is_told_what_to_do_and_not_to_want_tasks(spec: dict[str, Any], after: str) -> None:
    hangs = Standstill("no step came for 37 s, where one took 0.065 s", is_stalled=True)
    kept = "Keeps 2 workers and 1 server: 3 workers would be 1.48 times as fast."
    others = {"job-2": a_record("job-2")}
    case = a_running_case(others=others, still={"job-1": hangs}, gives_more=(), kept_on_larger_cluster=kept)
    found = explanation_of(replace(case, job=a_record(wanted=Allocation(2, 1), spec=spec))).sentences
    at = found.index("No step came for 37 s, where one took 0.065 s.")
    assert found[at + 1] == (
        f"If its code hangs, the worker is {after}; `optimus logs job-1` shows what it printed, and "
        "`optimus cancel job-1` ends it."
    )
    assert not any("task would" in each or "as fast" in each for each in found)


def test_a_reason_that_what_is_measured_since_has_overtaken_is_not_told_beside_advice_against_it() -> None:
    """More is planned with, when advice is tried, than was known at the last round."""
    enough = "Keeps 2 workers and 1 server: more tasks would make it hardly faster."
    case = a_running_case(gives_more=("the end of line-e",))
    assert case.decision is not None
    had_enough = replace(case.decision, reason="NoFurtherGain", message=enough, next_gain=-0.02)
    room = "there is no room for 2 workers and 2 servers beside what other jobs keep at least"
    lacks = Decision(
        job_id="job-1",
        allocation=Allocation(2, 1),
        previous=Allocation(2, 1),
        reason=Reason.MINIMUM_ELSEWHERE,
        message=f"Keeps 2 workers and 1 server: {room}.",
        forecast=had_enough.forecast,
        next_gain=0.57,
    )
    case = replace(case, decision=had_enough)
    found = explanation_of(replace(case, decided_now=lacks))
    assert found.sentences[:2] == [enough, f"By what is known since then, it keeps 2 workers and 1 server: {room}."]
    assert "One more task would make it faster." in found.sentences
    assert found.next_gain == 0.57
    grows = lacks._replace(allocation=Allocation(3, 1), reason=Reason.GRANTED_MORE, message="Grows.")
    found = explanation_of(replace(case, decided_now=grows))
    assert found.sentences[1] == "By what is known since then, the next round would give it 3 workers and 1 server."
    assert found.next_gain is None
    assert not any("One more" in each for each in found.sentences)
    smaller, why = Allocation(1, 1), "Shrinks from 2 workers and 1 server to 1 worker and 1 server: it is as fast."
    shrinks = lacks._replace(allocation=smaller, reason=Reason.GRANTED_MORE, message=why)
    found = explanation_of(
        replace(case, decision=replace(had_enough, next_gain=0.57), decided_now=shrinks, loses_to=smaller)
    )
    assert f"By what is known since then, it s{why[1:]}" in found.sentences
    assert found.next_gain is None
    assert not any("One more" in each for each in found.sentences)
    as_before = lacks._replace(reason=Reason.NO_FURTHER_GAIN, message=enough, next_gain=-0.02)
    for case_now in (case, replace(case, decided_now=as_before)):
        told = explanation_of(case_now).sentences
        assert not any("since then" in each for each in told)
        assert "One more task would not make it faster by enough to be worth a task." in told


def test_a_lack_of_room_that_what_is_measured_since_has_overtaken_is_not_told_where_no_room_helps() -> None:
    case = a_running_case(gives_more=())
    assert case.decision is not None
    enough = Decision(
        job_id="job-1",
        allocation=Allocation(2, 1),
        previous=Allocation(2, 1),
        reason=Reason.NO_FURTHER_GAIN,
        message="Keeps 2 workers and 1 server: more tasks would make it hardly faster.",
        forecast=case.decision.forecast,
        next_gain=-0.01,
    )
    found = explanation_of(replace(case, decided_now=enough)).sentences
    told = "By what is known since then, it keeps 2 workers and 1 server: more tasks would make it hardly faster."
    assert found[1] == told
    assert "One more task would not make it faster by enough to be worth a task." in found
    full = enough._replace(reason=Reason.MINIMUM_ELSEWHERE, next_gain=0.1)
    assert not any("since then" in each for each in explanation_of(replace(case, decided_now=full)).sentences)


@pytest.mark.parametrize("reason", ["GrantedMore", "LearningSpeed", "ClusterFull"])
def test_whether_one_more_task_helps_is_told_by_what_is_known_now(reason: str) -> None:
    """The last round's gains were of the speeds that it knew."""
    case = a_running_case()
    assert case.decision is not None
    then = replace(case, decision=replace(case.decision, reason=reason))
    assert "One more task would make it faster." in explanation_of(then).sentences
    now = Decision(
        job_id="job-1",
        allocation=Allocation(2, 1),
        previous=Allocation(2, 1),
        reason=Reason(reason),
        message="Keeps 2 workers and 1 server.",
        forecast=case.decision.forecast,
        next_gain=-0.3,
    )
    found = explanation_of(replace(then, decided_now=now))
    assert "One more task would not make it faster by enough to be worth a task." in found.sentences
    assert found.next_gain == -0.3
    for other in (now._replace(next_gain=None), now._replace(allocation=Allocation(3, 1))):
        found = explanation_of(replace(then, decided_now=other))
        assert found.next_gain is None
        assert not any("One more" in each for each in found.sentences)


def test_the_task_that_a_job_may_have_more_of_is_told() -> None:
    case = a_running_case()
    limited = a_record(wanted=Allocation(2, 1), spec={"workers": {"max": 2}, "servers": {"max": 4}})
    assert "One more server would make it faster." in explanation_of(replace(case, job=limited)).sentences


def test_a_job_that_stands_still_shows_no_gain_of_one_more_and_no_advice_to_get_more() -> None:
    hangs = Standstill("no step came for 37 s, where one took 0.065 s", is_stalled=True)
    case = a_running_case(gives_more=("one more node",))
    trains, stands = explanation_of(case), explanation_of(replace(case, still={"job-1": hangs}))
    assert trains.next_gain is not None
    assert stands.next_gain is None
    assert "one more node" in trains.what_would_change_it
    mended = "what keeps it from making steps is mended: `optimus logs job-1` shows what it printed"
    assert stands.what_would_change_it == f"Nothing before {mended}."
    hung = Standstill("its workers hung once, after step 40", is_stalled=True, hung_at=40)
    goes_on = explanation_of(replace(case, still={"job-1": hung}))
    assert goes_on.what_would_change_it.startswith("Nothing before what makes its workers hang is mended: ")
    assert any(each.startswith("If its code hangs again, the worker is replaced after ") for each in goes_on.sentences)


def test_a_script_that_may_begin_anew_is_told_by_what_its_end_is() -> None:
    """It was killed at step 40 of 60 and went on from there, while an end with all of its steps to make was told."""
    script = {"task": None, "command": ["python", "train.py"], "working_directory": "/w", "architecture": "script"}
    one = Allocation(1, 0)
    job = a_record(state=JobState.RUNNING, step=40, formed_at=5.0, wanted=one, running=one, spec=script)
    still = {"job-1": Standstill(REPLACING, is_stalled=False, is_replaced=True)}
    told = A_LIMIT._replace(seconds_per_step=Interval(1.0, 0.9, 1.1))
    case = Case(job=job, decision=a_decision("job-1", forecast=told), now=60.0, still=still)
    again = "It is not known to have a checkpoint: without one, its 40 steps are made again."
    assert again in explanation_of(case).sentences
    assert again not in explanation_of(replace(case, still={})).sentences, "it trains"
    resumes = replace(case, job=replace(job, profile={"resumes": True}))
    assert again not in explanation_of(resumes).sentences


def test_of_a_job_whose_worker_is_replaced_the_gain_of_a_task_is_told_on() -> None:
    replaced = Standstill(REPLACING, is_stalled=False, is_replaced=True)
    found = explanation_of(a_running_case(still={"job-1": replaced})).sentences
    assert "A worker is being replaced." in found
    assert "One more task would make it faster." in found
    assert not any("optimus cancel" in each for each in found)


@pytest.mark.parametrize(
    ("step", "later", "is_undone"),
    [(60, [], False), (0, [], True), (60, [a_membership(epoch=2, at=30.0, cause="resume", step=10)], True)],
    ids=["trains on", "taken back", "went on from before"],
)
def test_a_loss_that_was_nan_before_training_went_back_is_not_told(
    step: int, later: list[MembershipRecord], is_undone: bool
) -> None:
    told = EventRecord(id=1, job_id="job-1", at=20.0, type=LOSS_NOT_FINITE, message="NaN", data={"step": 54})
    memberships = [a_membership(at=0.0), *later]
    assert is_over(told, a_record(step=step), memberships) == is_undone


@pytest.mark.parametrize(("wanted", "is_retired"), [(Allocation(1, 1), False), (NOTHING, True)])
def test_a_job_without_tasks_is_not_told_that_a_worker_hung(wanted: Allocation, is_retired: bool) -> None:
    hung = EventRecord(id=1, job_id="job-1", at=20.0, type=WORKER_HUNG, message="worker 0 hung", data={})
    assert is_over(hung, a_record(state=JobState.PAUSED, wanted=wanted), [a_membership(at=0.0)]) == is_retired


@pytest.mark.parametrize(
    ("later", "is_reached"),
    [([], False), ([a_membership(epoch=2, at=30.0, workers=("job-1-worker-0-2",))], True)],
)
def test_a_worker_that_cannot_reach_its_coordinator_is_told_until_it_takes_part(
    later: list[MembershipRecord], is_reached: bool
) -> None:
    words = "job-1-worker-0-1 ended as it could not reach the job's coordinator"
    told = EventRecord(id=1, job_id="job-1", at=20.0, type=COORDINATOR_UNREACHABLE, message=words, data={})
    assert is_over(told, a_record(), [a_membership(at=0.0), *later]) == is_reached
    assert COORDINATOR_UNREACHABLE in _WARNINGS


@pytest.mark.parametrize(("later", "is_replaced"), [([], False), ([a_membership(epoch=2, at=30.0)], True)])
def test_a_coordinator_that_was_replaced_is_not_told_to_be_silent(
    later: list[MembershipRecord], is_replaced: bool
) -> None:
    silent = EventRecord(id=1, job_id="job-1", at=20.0, type=COORDINATOR_SILENT, message="it is silent", data={})
    assert is_over(silent, a_record(), [a_membership(at=0.0), *later]) == is_replaced


@pytest.mark.parametrize("reason", ["Unchanged", "NoFurtherGain"])
def test_a_job_that_no_other_size_is_better_for_is_not_told_that_one_more_task_is(reason: str) -> None:
    case = a_running_case(others={"job-2": a_record("job-2")})
    assert case.decision is not None
    found = explanation_of(replace(case, decision=replace(case.decision, reason=reason))).sentences
    assert "One more task would make it a little faster: too little to change its size for." in found
    assert not any(each.startswith("One more task would make it faster") for each in found)


def test_the_marginal_job_is_the_one_with_the_least_gain_that_holds() -> None:
    """Whichever round stored it: a decision that stays the same is not stored again."""
    others = {job_id: a_record(job_id) for job_id in ("job-2", "job-3", "job-4")}
    gains = {"job-2": (6, 0.3), "job-3": (7, 0.5), "job-4": (7, None)}
    decisions = {job_id: a_decision(job_id, round_id=number, gain=gain) for job_id, (number, gain) in gains.items()}
    found = explanation_of(a_running_case(others=others, decisions=decisions))
    assert found.marginal is not None
    assert (found.marginal.job_id, found.marginal.gain) == ("job-2", 0.3)


@pytest.mark.parametrize(
    ("tried", "told"),
    [
        (None, TEXTS["ClusterFull"].what_would_change_it),
        (
            (),
            "Nothing that was tried gives it more now: "
            "its limits and priority, quotas, one more node, the end of other jobs.",
        ),
        (("a node",), "It would get more with this: a node."),
        (("a node", "the end of b"), "It would get more with any one of these: a node; the end of b."),
    ],
)
def test_advice_is_what_was_tried(tried: tuple[str, ...] | None, told: str) -> None:
    assert explanation_of(a_running_case(gives_more=tried)).what_would_change_it == told


_OTHERWISE = "Nothing that was tried lets it start now"
_TRIED = "its limits and priority, quotas, one more node"
_ASK_OF_PRIORITY = " What a higher priority would do is told by `optimus set job-1 --priority 2 --dry-run`."


@pytest.mark.parametrize(
    ("behind", "told"),
    [
        (
            Behind(4, 10),
            f"14 other jobs (4 with tasks and 10 of those that wait) go first. {_OTHERWISE}: {_TRIED}.",
        ),
        (Behind(1, 0), f"1 other job (1 with tasks) goes first. {_OTHERWISE}: {_TRIED}."),
        (
            Behind(4, None),
            f"Other jobs (4 with tasks and some of those that wait) go first. {_OTHERWISE}: {_TRIED}.",
        ),
        (Behind(None, None), f"Other jobs go first. {_OTHERWISE}: {_TRIED}."),
    ],
)
def test_a_job_that_nothing_but_ends_of_others_helps_is_told_how_many_go_first(behind: Behind, told: str) -> None:
    decision = a_decision(reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING)
    case = Case(job=a_record(wanted=NOTHING), decision=decision, now=10.0, gives_more=(), behind=behind)
    assert explanation_of(case).what_would_change_it == told, "no dry run can say when it would start"
    if behind.waiting:
        known = answers.Interval(mean=9.0, low=5.0, high=12.0)
        queue = [Queued(behind.waiting + 1, case.job, decision, known)]
        assert explanation_of(replace(case, queue=queue)).what_would_change_it == f"{told}{_ASK_OF_PRIORITY}"
    keeps = explanation_of(a_running_case(gives_more=(), loses_to=NOTHING, behind=behind)).what_would_change_it
    start = "As things are now, the next round would pause it. "
    assert keeps == start + told.replace("start now", "keep what it has now")


def test_as_many_go_first_of_those_that_wait_as_everybody_is_shown_before_it() -> None:
    """Where a start is told, by the look at the queue; the advice knows of no times, and counts otherwise."""
    decisions = {
        job_id: replace(
            a_decision(job_id, reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING),
            expected=ExpectedTimesRecord(job_id=job_id, at=9.0, valid_until=99.0, start=start, end=None),
        )
        for job_id, start in (("job-1", Interval(90.0, 90.0, 90.0)), ("job-2", Interval(30.0, 30.0, 30.0)))
    }
    waiting = [a_record(job_id, wanted=NOTHING) for job_id in decisions]
    case = Case(
        job=waiting[0],
        decision=decisions["job-1"],
        now=10.0,
        queue=in_queue(waiting, decisions, 10.0),
        gives_more=(),
        behind=Behind(2, 1),
    )
    assert explanation_of(case).what_would_change_it.startswith("3 other jobs (2 with tasks and 1 of those that wait) ")
    case = replace(case, behind=Behind(2, 5))
    some = "Other jobs (2 with tasks and some of those that wait) go first."
    assert explanation_of(case).what_would_change_it.startswith(some), "no second number beside the one below"
    told = "That is by the starts that are foreseen: if the jobs with tasks that go first ended now, "
    assert f"{told}5 that wait would start before it." in explanation_of(case).sentences
    for n_before, position in ((None, 1), (0, 1), (1, 2), (1, 1), (4, 4)):
        queue = [each._replace(position=position) for each in case.queue if each.job.id == "job-1"]
        here = replace(case, queue=queue, behind=Behind(1, n_before), policy="optimus")
        said = explanation_of(here).sentences
        differs = n_before is not None and n_before >= position
        assert (f"{told}1 that waits would start before it." in said) == (differs and n_before == 1)
        assert any("ended now" in each for each in said) == differs
        assert any("Each round decides anew who starts" in each for each in said) or not differs


@pytest.mark.parametrize(("started_at", "verb"), [(None, "start"), (5.0, "go on")])
def test_what_the_next_round_would_do_is_told_instead_of_an_older_look(started_at: float | None, verb: str) -> None:
    job = a_record(state=JobState.PAUSED, wanted=NOTHING, started_at=started_at)
    decision = a_decision(reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING)
    at = Interval(95.0, 85.0, 110.0)
    looked = ExpectedTimesRecord(job_id="job-1", at=9.0, valid_until=99.0, start=at, end=None)
    case = Case(job=job, decision=replace(decision, expected=looked), now=10.0, gives_more=(NEXT_ROUND,))
    told = [each for each in explanation_of(case).sentences if "with the next round" in each]
    look = "by the look at the queue 1 s ago, which lists show, in about 85 s (75 to 100 with 80 % probability)"
    assert told == [f"As things are now, it would {verb} with the next round; {look}."]
    told = [*explanation_of(replace(case, decision=decision)).sentences]
    assert f"It is expected to {verb} with the next round, as things are now." in told


@pytest.mark.parametrize(("started_at", "verb"), [(None, "start"), (5.0, "go on")])
def test_a_job_that_has_trained_is_not_told_what_would_start_it(started_at: float | None, verb: str) -> None:
    job = a_record(state=JobState.PAUSED, wanted=NOTHING, started_at=started_at)
    decision = a_decision(reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING)
    case = Case(job=job, decision=decision, now=10.0, gives_more=("a node",))
    assert explanation_of(case).what_would_change_it == f"It would {verb} with this: a node."


@pytest.mark.parametrize(
    ("left", "tried", "told"),
    [
        (NOTHING, ("a node",), "pause it. It would keep what it has with this: a node."),
        (
            Allocation(1, 1),
            (),
            "leave it only 1 worker and 1 server. Nothing that was tried lets it keep what it has: ",
        ),
    ],
)
def test_a_job_that_loses_what_it_has_is_not_told_what_gives_it_more(
    left: Allocation, tried: tuple[str, ...], told: str
) -> None:
    found = explanation_of(a_running_case(gives_more=tried, loses_to=left)).what_would_change_it
    assert found.startswith(f"As things are now, the next round would {told}")


@pytest.mark.parametrize(
    ("most", "told"),
    [(1, "Whether larger limits would give it more"), (4, "Whether it grows is decided")],
    ids=["all", "more"],
)
def test_a_job_that_has_all_it_may_have_is_not_told_that_it_grows(most: int, told: str) -> None:
    spec = {"workers": {"min": 1, "max": most}, "servers": {"min": 1, "max": 1}}
    decision = a_decision(reason=Reason.LEARNING_SPEED, allocation=Allocation(1, 1))
    case = Case(job=a_record(spec=spec, wanted=Allocation(1, 1)), decision=decision, now=10.0, gives_more=())
    assert explanation_of(case).what_would_change_it.startswith(told)


@pytest.mark.parametrize(
    ("decided", "now", "told"),
    [
        ("LearningSpeed", None, "Whether it grows by itself is decided when its speed at this size is measured. "),
        ("MinimumElsewhere", "LearningSpeed", "Whether it grows by itself is decided when its speed at this size is "),
        ("NotWorthRescaling", None, "Its size may change by itself as more is known of its speed and its end. It "),
        ("MinimumElsewhere", "MinimumElsewhere", "It would get more with this: a node."),
        ("ClusterFull", "GrantedMore", "As things are now, the next round gives it 3 workers and 1 server. It would "),
    ],
)
def test_that_a_job_may_grow_by_itself_comes_before_advice(decided: str, now: str | None, told: str) -> None:
    """It would grow without what is advised."""
    spec = {"workers": {"min": 1, "max": 4}, "servers": {"min": 1, "max": 4}}
    has = Allocation(1, 1)
    decision = a_decision(reason=decided, allocation=has)
    gets = Allocation(3, 1) if now == "GrantedMore" else has
    newer = None if now is None else Decision("job-1", gets, has, Reason(now), "Keeps it.", A_LIMIT)
    case = Case(job=a_record(spec=spec, wanted=has), decision=decision, now=10.0, decided_now=newer)
    found = explanation_of(replace(case, gives_more=("a node",))).what_would_change_it
    assert found.startswith(told), found
    assert found.endswith("more with this: a node.")
    known = explanation_of(replace(case, gives_more=(MEASUREMENT, "a node"))).what_would_change_it
    assert "by itself" not in known, "it is told of the measurement"


def test_what_keeps_tasks_from_running_comes_first() -> None:
    case = a_running_case(gives_more=("a node",), troubles=("job-1-worker-0: no image",))
    assert explanation_of(case).what_would_change_it.startswith("What keeps its tasks from running has to be mended")


@pytest.mark.parametrize(
    ("state", "decided", "told"),
    [
        (JobState.FAILED, ("LearningSpeed", None), "The job failed: it broke"),
        (JobState.SUCCEEDED, ("LimitReached", "max_cost"), "The job succeeded: its budget was spent."),
        (JobState.SUCCEEDED, ("Converged", "loss_decrease"), "The job succeeded: its loss hardly fell any more."),
        (JobState.SUCCEEDED, ("LearningSpeed", "max_steps"), "The job succeeded."),
        (JobState.CANCELLED, ("Unchanged", None), "The job was cancelled."),
    ],
)
def test_an_ended_job_has_no_reason_but_how_it_ended(
    state: JobState, decided: tuple[str, str | None], told: str
) -> None:
    reason, rule = decided
    failure = "it broke" if state is JobState.FAILED else None
    ended = a_record(state=state, failure=failure, finished_at=9.0)
    found = explanation_of(
        Case(job=ended, decision=a_decision(reason=reason, forecast=a_forecast(rule=rule)), now=10.0)
    )
    assert (found.reason, found.message) == (None, told)


@pytest.mark.parametrize(
    ("convergence", "told"),
    [
        ({"max_epochs": 2}, "The job succeeded: it made all the epochs of its limit."),
        ({"max_steps": 17}, "The job succeeded: it made all the steps of its limit."),
        ({"max_epochs": 3, "max_steps": 18}, "The job succeeded."),
    ],
)
def test_a_limit_that_was_reached_between_two_rounds_is_told(convergence: dict[str, Any], told: str) -> None:
    ended = a_record(state=JobState.SUCCEEDED, finished_at=9.0, step=17, epoch=2.04, spec={"convergence": convergence})
    assert explanation_of(Case(job=ended, decision=None, now=10.0)).message == told
    converged = a_decision(reason="Converged", forecast=a_forecast(rule="loss_decrease"))
    by_loss = "The job succeeded: its loss hardly fell any more." if told == "The job succeeded." else told
    assert explanation_of(Case(job=ended, decision=converged, now=10.0)).message == by_loss, "decided as it ended"
    useless = explanation_of(Case(job=replace(ended, loss=math.nan), decision=None, now=10.0)).message
    assert useless == f"{told[:-1]}, but its loss was NaN or infinite at the end."


@pytest.mark.parametrize(
    ("seconds", "told"), [(20.0, "It missed its deadline by 34 s."), (60.0, "It met its deadline, 6 s before it.")]
)
def test_whether_the_deadline_was_met_is_told_after_the_end(seconds: float, told: str) -> None:
    ended = a_record(state=JobState.SUCCEEDED, finished_at=54.0, spec={"deadline_seconds": seconds})
    story = explanation_of(Case(job=ended, decision=None, now=60.0)).sentences[-1]
    assert told in story


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(25.0, "will probably miss"), (38.0, "will probably miss"), (45.0, "may miss"), (100.0, "will probably meet")],
)
def test_a_running_job_is_judged_by_the_interval_of_its_end(seconds: float, told: str) -> None:
    running = a_record(state=JobState.RUNNING, step=40, wanted=Allocation(1, 0), spec={"deadline_seconds": seconds})
    end = Interval(40.0, 30.0, 60.0)
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=100.0, start=None, end=end)
    found = explanation_of(Case(job=running, decision=replace(a_decision(forecast=A_LIMIT), expected=times), now=10.0))
    assert f"By this it {told} its deadline." in found.sentences


@pytest.mark.parametrize(("seconds", "is_told"), [(38.0, True), (45.0, False), (100.0, False)])
def test_where_a_size_is_chosen_for_a_deadline_that_is_missed_it_is_said_why(seconds: float, is_told: bool) -> None:
    running = a_record(state=JobState.RUNNING, step=40, wanted=Allocation(1, 0), spec={"deadline_seconds": seconds})
    end = Interval(40.0, 30.0, 60.0)
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=100.0, start=None, end=end)
    decision = replace(a_decision(reason=Reason.MEETING_DEADLINE, forecast=A_LIMIT), expected=times)
    told = explanation_of(Case(job=running, decision=decision, now=10.0)).sentences
    why = "Its size is chosen by its steps and speed alone: its start, stops and doubts are counted here, too."
    assert (why in told) is is_told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (25.0, "By this it will probably miss its deadline."),
        (45.0, "By this it may meet or miss its deadline: no step of it is measured yet."),
        (65.0, "By this it may meet or miss its deadline: no step of it is measured yet."),
        (100.0, "By this it will probably meet its deadline."),
    ],
)
def test_before_its_first_step_a_job_is_judged_by_the_bounds_of_its_end(seconds: float, told: str) -> None:
    """The first step may say the opposite of what the middle says before."""
    starting = a_record(state=JobState.RUNNING, step=0, wanted=Allocation(1, 0), spec={"deadline_seconds": seconds})
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=100.0, start=None, end=Interval(60.0, 30.0, 80.0))
    found = explanation_of(Case(job=starting, decision=replace(a_decision(forecast=A_LIMIT), expected=times), now=10.0))
    assert told in found.sentences


@pytest.mark.parametrize(("seconds", "told"), [(25.0, True), (45.0, True), (65.0, False), (100.0, False)])
def test_a_decision_that_gives_a_deadline_up_is_not_contradicted(seconds: float, told: bool) -> None:
    starting = a_record(state=JobState.RUNNING, step=0, wanted=Allocation(1, 0), spec={"deadline_seconds": seconds})
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=100.0, start=None, end=Interval(60.0, 30.0, 80.0))
    message = "It has all. Its deadline can hardly be met: by runs like it, it takes 9 min or more."
    decision = replace(a_decision(forecast=A_LIMIT), expected=times, message=message)
    sentences = explanation_of(Case(job=starting, decision=decision, now=10.0)).sentences
    said = [each for each in sentences if each.startswith("By this it")]
    assert said == ["By this it will probably miss its deadline."] * told


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ("It has all.", "Its deadline is not promised: too little is known of its end."),
        (
            "Its deadline can hardly be met: by runs like it, it takes 27 s or more with a probability of 90 %.",
            "Its deadline is not promised.",
        ),
        ("Its deadline will probably be missed by about 9 min.", "Its deadline is not promised."),
    ],
)
def test_too_little_is_not_said_to_be_known_of_an_end_that_is_known_to_be_late(message: str, told: str) -> None:
    starting = a_record(state=JobState.RUNNING, step=0, wanted=Allocation(1, 0), spec={"deadline_seconds": 100.0})
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=100.0, start=None, end=None)
    decision = replace(a_decision(), expected=times, message=message)
    sentences = explanation_of(Case(job=starting, decision=decision, now=10.0)).sentences
    assert [each for each in sentences[1:] if "deadline" in each] == [told]


def test_a_deadline_is_not_answered_before_the_first_look_at_the_queue() -> None:
    waits = a_record(state=JobState.QUEUED, step=0, wanted=NOTHING, spec={"deadline_seconds": 100.0})
    told = explanation_of(Case(job=waits, decision=None, now=1.0)).sentences
    assert "Its deadline is not promised yet: the next look at the queue answers it." in told


def a_cut(**changes: Any) -> ExpectedTimesRecord:
    """What a look at 10 s says of job-1, which trains: it is expected to be paused for job-2."""
    cut = ExpectedCut(Interval(40.0, 35.0, 45.0), pauses=True, job_id="job-2", why=SOONER)._replace(**changes)
    return ExpectedTimesRecord(
        job_id="job-1", at=10.0, valid_until=200.0, start=None, end=Interval(500.0, 90.0, 900.0), cut=cut
    )


def test_a_job_that_may_be_paused_is_told_for_whom_when_and_why() -> None:
    trains = a_record(state=JobState.RUNNING, step=40, wanted=Allocation(1, 0), running=Allocation(1, 0))
    other = a_record("job-2", state=JobState.QUEUED, wanted=NOTHING)

    def told(expected: ExpectedTimesRecord, now: float = 10.0, **fields: Any) -> list[str]:
        decision = replace(a_decision(forecast=A_LIMIT), expected=expected)
        case = Case(job=replace(trains, **fields), decision=decision, now=now, others={"job-2": other})
        return [each for each in explanation_of(case).sentences if "Rounds decide that anew" in each]

    name = f"{other.name} (job-2)"
    assert told(a_cut()) == [
        f"It may be paused in about 30 s, so that {name} starts, which is expected to need less time. "
        "Rounds decide that anew until then."
    ]
    assert told(a_cut(), 38.0)[0].startswith("It may be paused in a moment, so that ")
    assert told(a_cut(), 110.0) == [], "it did not come"
    assert told(a_cut(job_id="job-9", why=None)) == [
        "It may be paused in about 30 s, so that another job starts. Rounds decide that anew until then."
    ]
    far = a_cut(pauses=False, at=Interval(100.0, 30.0, 170.0), why=GUARANTEE)
    assert told(far)[0].startswith("It may be made smaller in 20 s to 3 min, so that ")
    assert told(a_cut(), state=JobState.PAUSED, wanted=NOTHING, running=NOTHING) == []
    shown = times_of(trains, replace(a_decision(forecast=A_LIMIT), expected=a_cut()), 10.0)
    assert shown is not None
    assert shown.cut == answers.ExpectedCut(pauses=True, seconds=30.0, words="may be paused in about 30 s")


def test_a_job_that_is_expected_to_get_the_tasks_of_another_is_not_told_that_it_needs_anything_else() -> None:
    loser = a_record("job-1", state=JobState.RUNNING, step=40, wanted=Allocation(1, 0))
    waits = a_record("job-2", state=JobState.QUEUED, wanted=NOTHING)
    starts = ExpectedTimesRecord(
        job_id="job-2", at=10.0, valid_until=200.0, start=Interval(40.0, 35.0, 90.0), end=None, freed_by="job-1"
    )
    decision = replace(a_decision("job-2", reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING), expected=starts)
    decisions = {"job-2": decision, "job-1": replace(a_decision("job-1"), expected=a_cut())}

    def found(others: Mapping[str, JobRecord], gives_more: Sequence[str] = ("the end of job-1",)) -> Any:
        case = Case(job=waits, decision=decision, now=10.0, others=others, decisions=decisions, gives_more=gives_more)
        return explanation_of(case)

    told, paused = found({"job-1": loser}), f"{loser.name} (job-1) is paused for it"
    assert f", likely when {paused}." in " ".join(told.sentences)
    nothing = f"Nothing has to: it is expected to start, likely when {paused}."
    at_present = "As things are now, it would start with this: the end of job-1."
    assert told.what_would_change_it == f"{nothing} {at_present}"
    assert found({"job-1": loser}, ()).what_would_change_it == nothing
    gone = found({"job-1": replace(loser, wanted=NOTHING, running=NOTHING)})
    assert gone.what_would_change_it == "It would start with this: the end of job-1."


def test_a_start_that_comes_if_a_job_fails_again_says_so() -> None:
    """Until it has passed the step no end of it is told, so that the start goes by the clock."""
    retried = a_record("retried", state=JobState.RUNNING, wanted=Allocation(1, 0), step=20)
    waits = a_record("job-2", state=JobState.QUEUED, wanted=NOTHING)
    end = ExpectedTimesRecord(
        job_id="retried", at=10.0, valid_until=200.0, start=None, end=Interval(190.0, 180.0, 200.0)
    )
    its = replace(a_decision("retried"), expected=end)
    starts = replace(end, job_id="job-2", start=Interval(50.0, 45.0, 220.0), end=None, at_once={"retried": 0.6})
    starts = replace(starts, behind=(Awaited(0.6, retried, its),))
    decision = replace(a_decision("job-2", reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING), expected=starts)
    still = {"retried": Standstill("its last try failed", is_stalled=False, failed_at=60, may_fail=True)}
    case = Case(job=waits, decision=decision, now=20.0, others={"retried": retried}, still=still)
    (start,) = [each for each in explanation_of(case).sentences if "expected to start" in each]
    assert start.startswith("It is expected to start in about 30 s ")
    assert start.endswith(", perhaps when retried (retried) fails after step 60 again, as its last try did.")
    killed = {"retried": still["retried"]._replace(may_fail=False)}
    assert not any("expected to start" in each for each in explanation_of(replace(case, still=killed)).sentences)


@pytest.mark.parametrize(
    ("at_once", "told"),
    [
        ({"ends": 0.7}, "most likely with the end of ends (ends), when job-1 (job-1) is made smaller for it"),
        ({"ends": 0.3}, "likely when job-1 (job-1) is made smaller for it"),
        ({}, "likely when job-1 (job-1) is made smaller for it"),
        ({"job-1": 0.7}, "most likely with the end of job-1 (job-1)"),
    ],
)
def test_a_start_that_needs_an_end_and_a_loss_names_both(at_once: dict[str, float], told: str) -> None:
    """At the end of `ends`, `job-1` loses a task: the room that the waiting job needs is that of both."""
    jobs = {each: a_record(each, state=JobState.RUNNING, wanted=Allocation(1, 0)) for each in ("job-1", "ends")}
    waits = a_record("job-2", state=JobState.QUEUED, wanted=NOTHING)
    end = ExpectedTimesRecord(job_id="ends", at=10.0, valid_until=200.0, start=None, end=Interval(40.0, 35.0, 50.0))
    decisions = {
        "ends": replace(a_decision("ends"), expected=end),
        "job-1": replace(a_decision("job-1"), expected=replace(a_cut(pauses=False), end=end.end)),
    }
    behind = tuple(Awaited(part, jobs[each], decisions[each]) for each, part in at_once.items())
    starts = replace(end, job_id="job-2", start=Interval(40.0, 35.0, 90.0), end=None, freed_by="job-1")
    starts = replace(starts, at_once=at_once, behind=behind)
    decision = replace(a_decision("job-2", reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING), expected=starts)
    case = Case(job=waits, decision=decision, now=10.0, others=jobs, decisions=decisions, gives_more=("one more node",))
    found = explanation_of(case)
    assert any(
        each.startswith("It is expected to start in ") and each.endswith(f", {told}.") for each in found.sentences
    )
    present = "As things are now, it would start with this: one more node."
    assert found.what_would_change_it == f"Nothing has to: it is expected to start, {told}. {present}"


@pytest.mark.parametrize(
    ("now", "seconds", "promised", "told"),
    [
        (
            10.0,
            100.0,
            True,
            "Its deadline was promised: what keeping it takes goes before jobs that were promised none, which may "
            "start before it as long as it can wait. "
            "Guarantees of projects come first.",
        ),
        (
            10.0,
            45.0,
            False,
            "Its deadline is not promised: it ends by 1970-01-01 00:01:07 UTC with a probability of 95 %.",
        ),
        (30.0, 20.0, True, "Its deadline has passed, though it was promised."),
        (30.0, 20.0, False, None),
    ],
    ids=["promised", "open", "promised and passed", "passed"],
)
def test_whether_its_deadline_is_promised_is_told(now: float, seconds: float, promised: bool, told: str | None) -> None:
    kept: dict[str, Any] = {"promised_deadline": seconds, "promised_at": 1.0} if promised else {}
    running = a_record(
        state=JobState.RUNNING, step=40, wanted=Allocation(1, 0), spec={"deadline_seconds": seconds}, **kept
    )
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=100.0, start=None, end=Interval(40.0, 30.0, 60.0))
    case = Case(job=running, decision=replace(a_decision(forecast=A_LIMIT), expected=times), now=now)
    said = [sentence for sentence in explanation_of(case).sentences if "deadline" in sentence]
    assert told in said if told is not None else not said


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (10.0, "runs on: whether it can be promised is answered when it is resumed."),
        (30.0, "passed"),
    ],
)
def test_the_deadline_of_a_job_that_its_owner_paused(now: float, told: str) -> None:
    paused = a_record(state=JobState.PAUSED, step=4, owner_paused_at=5.0, spec={"deadline_seconds": 20.0})
    sentences = explanation_of(Case(job=paused, decision=a_decision(forecast=A_LIMIT), now=now)).sentences
    (said,) = (each for each in sentences if "eadline" in each)
    assert told in said
    assert "at 1970-01-01 00:00:20 UTC" in said


def test_a_job_that_keeps_its_size_with_more_room_is_told_why() -> None:
    case = a_running_case(gives_more=(), kept_on_larger_cluster="Keeps 2 workers and 1 server: it is near its end.")
    assert "With more room, too, it keeps 2 workers and 1 server: it is near its end." in explanation_of(case).sentences
    other = replace(case, decision=a_decision("job-1", reason="AtMaximum", allocation=Allocation(2, 1)))
    assert not any("With more room" in each for each in explanation_of(other).sentences)


@pytest.mark.parametrize(
    ("command", "resumes", "told"),
    [
        ("torchrun", True, "Whether larger limits would give it more can be said when its speed at this size is mea"),
        ("torchrun", False, "checkpoint, and with a larger `workers.max`, it may have more workers."),
        ("python", True, "several (by RANK and WORLD_SIZE), a larger `workers.max` lets it have more workers."),
        (
            "python",
            False,
            "WORLD_SIZE), submitted with `--workers-min 2 --workers-max 2` it has two workers, and with ",
        ),
    ],
)
def test_a_script_at_its_limit_is_told_how_it_may_have_more_workers(command: str, resumes: bool, told: str) -> None:
    """Where nothing that was tried gives it more, and its speed is not known yet."""
    script = {"task": None, "command": [command, "train.py"], "working_directory": "/w", "architecture": "script"}
    limits = {"workers": {"max": 1}, "servers": {"min": 0, "max": 0}}
    job = a_record(state=JobState.RUNNING, wanted=Allocation(1, 0), spec={**script, **limits, "resumes": resumes})
    decision = a_decision("job-1", reason="AtMaximum", allocation=Allocation(1, 0))
    case = Case(job=job, decision=decision, now=60.0, gives_more=())
    assert told in explanation_of(case).what_would_change_it
    for words in ("workers.max", "workers-min", "--resumes"):
        alone = explanation_of(replace(case, may_have_two=False)).what_would_change_it
        assert words not in alone, "two would be refused"


@pytest.mark.parametrize(
    ("command", "spec", "profile", "told"),
    [
        ("torchrun", {"resumes": True, "workers": {"max": 4}}, {"fixed_workers": 1}, "It counts its steps by its numb"),
        ("python", {"workers": {"max": 4}}, {"resumes": True, "fixed_workers": 1}, "It counts its steps by its number"),
        (
            "torchrun",
            {"workers": {"max": 4}},
            {"resumes": False},
            "It began anew when it was started again: if that was before its first checkpoint, submitted with "
            "`--resumes`, its size may change.",
        ),
        (
            "torchrun",
            {"workers": {"max": 1}},
            {"resumes": False},
            "before its first checkpoint, submitted with `--resumes`, and with a larger `workers.max`, it may have",
        ),
        (
            "python",
            {"workers": {"max": 1}},
            {"resumes": False},
            "it has two workers. It began anew when it was started again: if that was before its first checkpoint, "
            "with `--resumes` and a larger `workers.max` it may have more.",
        ),
        ("torchrun", {"workers": {"max": 4}}, None, "Submitted with `--resumes`, which says that it goes on from its"),
    ],
)
def test_advice_to_a_script_whose_size_stays_knows_what_was_seen_of_it(
    command: str, spec: dict[str, Any], profile: dict[str, Any] | None, told: str
) -> None:
    """`--resumes` lets no size change where only the first one counts the same steps."""
    script = {"task": None, "command": [command, "train.py"], "working_directory": "/w", "architecture": "script"}
    whole = {**script, "servers": {"min": 0, "max": 0}, **spec}
    job = a_record(state=JobState.RUNNING, wanted=Allocation(1, 0), spec=whole, profile=profile)
    decision = a_decision("job-1", reason="AtMaximum", allocation=Allocation(1, 0))
    said = explanation_of(Case(job=job, decision=decision, now=60.0, gives_more=())).what_would_change_it
    assert told in said
    assert ("--resumes" in said) is ("fixed_workers" not in (profile or {}))


@pytest.mark.parametrize(
    ("end", "told"),
    [
        (300.0, "without waiting and stops, it would take about 100 s"),
        (104.0, None),
        (50.0, "At the size that it has, by its newest speed, it would take about 100 s"),
    ],
)
def test_an_end_that_the_present_size_does_not_give_is_told_with_that_one(end: float, told: str | None) -> None:
    """It has 100 steps of a second left."""
    pace = {"mean": 1.0, "low": 0.9, "high": 1.2}
    left = {"mean": 100.0, "low": 90.0, "high": 120.0}
    all_steps = {name: 400.0 + value for name, value in left.items()}
    known = {"total_steps": all_steps, "remaining_steps": left, "seconds_per_step": pace, "rule": "max_steps"}
    foreseen = ExpectedTimesRecord(
        job_id="job-1", at=10.0, valid_until=100.0, start=None, end=Interval(10 + end, 10 + 0.9 * end, 10 + 1.2 * end)
    )
    case = a_running_case()
    assert case.decision is not None
    decision = replace(case.decision, forecast=from_json("job-1", known), expected=foreseen, at=10.0)
    trains: dict[str, Any] = {
        "running": Allocation(2, 1),
        "state": JobState.RUNNING,
        "started_at": 1.0,
        "first_step": 1,
    }
    job = replace(case.job, step=400, **trains)
    said = " ".join(explanation_of(replace(case, job=job, decision=decision)).sentences)
    assert "is expected to end in" in said
    assert ("it would take about 100 s" in said) == (told is not None)
    assert told is None or told in said
    among = replace(case, job=job, decision=decision, others={"job-2": a_record("job-2")})
    assert told is None or told in " ".join(explanation_of(among).sentences), (
        "nobody knows that it is they who delay it"
    )
    doubtful = replace(foreseen, end=Interval(10 + end, 10 + 0.1 * end, 10 + 10 * end))
    unsure = replace(case, job=job, decision=replace(decision, expected=doubtful))
    assert "without waiting" not in " ".join(explanation_of(unsure).sentences), "as soon as that it may well end"
    new = replace(case, job=replace(job, first_step=None), decision=decision)
    assert "newest speed" not in " ".join(explanation_of(new).sentences), "it has none"


def test_a_kept_promise_is_told_after_the_end() -> None:
    kept: dict[str, Any] = {"promised_deadline": 60.0, "promised_at": 1.0}
    ended = a_record(state=JobState.SUCCEEDED, finished_at=54.0, spec={"deadline_seconds": 60.0}, **kept)
    assert "as was promised." in explanation_of(Case(job=ended, decision=None, now=60.0)).sentences[-1]
    other = replace(ended, promised_deadline=70.0)
    assert "promised" not in explanation_of(Case(job=other, decision=None, now=60.0)).sentences[-1], (
        "of another deadline"
    )
    broken = replace(ended, finished_at=64.0)
    assert "though that was promised." in explanation_of(Case(job=broken, decision=None, now=70.0)).sentences[-1]


@pytest.mark.parametrize(
    ("turn", "told"),
    [
        (None, None),
        (
            Turn(340.0, 400.0),
            "If it still waits at about 1970-01-01 00:06:40 UTC (6 min 40 s of waiting), no other job starts before "
            "it, except one with a deadline or a guarantee of its quota, or whose wait became too long earlier. That "
            "comes later while the jobs that were there before its wait need the whole cluster for longer than it has "
            "waited.",
        ),
        (
            Turn(-10.0, 70.0),
            "If it still waits in the next round (1 min 10 s of waiting), no other job starts before it",
        ),
    ],
)
def test_a_waiting_job_is_told_from_when_on_none_passes_it(turn: Turn | None, told: str | None) -> None:
    made = a_decision("job-1", reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING)
    waits = a_record(state=JobState.QUEUED, wanted=NOTHING, spec={"priority": 4})
    case = Case(job=waits, decision=made, now=60.0, turn=turn, policy="optimus")
    found = " ".join(explanation_of(case).sentences)
    assert "no other job starts before it" not in found if told is None else told in found


@pytest.mark.parametrize(("latest", "is_told"), [(390.0, False), (410.0, True)])
def test_a_job_that_starts_before_its_turn_is_not_told_of_that(latest: float, is_told: bool) -> None:
    start = Interval(100.0, 80.0, latest)
    times = ExpectedTimesRecord(job_id="job-1", at=60.0, valid_until=900.0, start=start, end=None)
    made = replace(a_decision("job-1", reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING), expected=times)
    waits = a_record(state=JobState.QUEUED, wanted=NOTHING, spec={"priority": 4})
    case = Case(job=waits, decision=made, now=60.0, turn=Turn(340.0, 400.0), policy="optimus")
    assert ("no other job starts before it" in " ".join(explanation_of(case).sentences)) == is_told


def test_of_a_tracked_job_no_change_of_size_is_told() -> None:
    spec = {"tracked": True, "task": None, "convergence": {"max_steps": 100}}
    trains = a_record(state=JobState.RUNNING, step=40, wanted=Allocation(1, 0), running=Allocation(1, 0), spec=spec)
    trains = replace(trains, heard_at=9.0)
    end = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=99.0, start=None, end=Interval(40.0, 30.0, 60.0))
    made = replace(a_decision("job-1", reason=Reason.TRACKED, forecast=A_LIMIT), expected=end)
    told = explanation_of(Case(job=trains, decision=made, now=10.0)).sentences
    assert any(each.startswith("It is expected to end in about ") for each in told), told
    assert not any("changes of size" in each for each in told)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"state": JobState.QUEUED, "wanted": NOTHING, "step": 0}, "It ends 1 min 30 s after its start at the latest"),
        ({"state": JobState.RUNNING, "started_at": 40.0}, "It ends in 70 s at the latest: its limit is 1 min 30 s."),
        (
            {"state": JobState.PAUSED, "wanted": NOTHING, "started_at": 40.0},
            "Its limit of 1 min 30 s runs on: after 1970-01-01 00:02:10 UTC, it ends as soon as it goes on.",
        ),
    ],
)
def test_a_job_of_which_only_its_limit_of_time_is_known_is_told_when_it_ends_at_the_latest(
    changes: dict[str, Any], told: str
) -> None:
    limited = a_record(**changes, spec={"convergence": {"max_seconds": 90.0}})
    assert told in " ".join(explanation_of(Case(job=limited, decision=None, now=60.0)).sentences)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"state": JobState.QUEUED, "wanted": NOTHING, "step": 0},
            "Its budget of 0.02 pays for 20 s with its smallest size: it ends then at the latest.",
        ),
        (
            {"state": JobState.QUEUED, "wanted": Allocation(2, 1), "step": 0},
            "Its budget of 0.02 pays for 20 s with 2 workers and 1 server: it ends then at the latest.",
        ),
        (
            {"state": JobState.RUNNING, "wanted": Allocation(1, 0), "started_at": 40.0},
            "What is left of its budget of 0.02 pays for 20 s with 1 worker: it ends then at the latest.",
        ),
    ],
)
def test_a_job_of_which_only_its_budget_is_known_is_told_when_it_ends_at_the_latest(
    changes: dict[str, Any], told: str
) -> None:
    spec = {"convergence": {"max_cost": 0.02, "max_seconds": 90.0}}
    case = Case(job=a_record(**changes, spec=spec), decision=None, now=60.0, seconds_paid=20.0)
    said = " ".join(explanation_of(case).sentences)
    assert told in said
    assert "1 min 30 s" in said, "its limit of time, too"
    unlimited = " ".join(explanation_of(replace(case, seconds_paid=math.inf)).sentences)
    assert "budget" not in unlimited


def test_a_job_that_starts_is_told_whose_tasks_may_still_hold_its_places() -> None:
    starts = a_record(state=JobState.QUEUED, wanted=Allocation(1, 0), running=NOTHING)
    leaves = a_record("leaves", state=JobState.RUNNING, wanted=NOTHING, running=Allocation(1, 0))
    case = Case(
        job=starts, decision=a_decision("job-1"), now=60.0, others={"leaves": leaves}, held_by=["hidden", "leaves"]
    )
    told = "Its tasks may have to wait until those of leaves (leaves) have stopped: that takes some seconds."
    assert told in explanation_of(case).sentences
    shrinks = replace(leaves, wanted=Allocation(1, 0), running=Allocation(2, 0))
    assert told in explanation_of(replace(case, others={"leaves": shrinks})).sentences
    assert told not in explanation_of(replace(case, held_by=())).sentences
    trains = replace(starts, state=JobState.RUNNING, running=Allocation(1, 0))
    assert told not in explanation_of(replace(case, job=trains)).sentences


def test_no_start_is_told_of_a_job_that_no_end_lets_in_though_an_older_look_has_one() -> None:
    """Its quota was made smaller since."""
    waits = a_record(state=JobState.QUEUED, wanted=NOTHING)
    looked = ExpectedTimesRecord(
        job_id="job-1", at=50.0, valid_until=90.0, start=Interval(94.0, 64.0, 149.0), end=Interval(141.0, 84.0, 344.0)
    )
    made = a_decision("job-1", reason=Reason.WAITING_FOR_QUOTA, allocation=NOTHING, previous=NOTHING)
    before = Case(job=waits, decision=replace(made, expected=looked), now=60.0)
    assert any("is expected to start in" in each for each in explanation_of(before).sentences)
    message = f"Waits: quotas leave no room. Its quota is 1 core; {NO_END_HELPS}."
    after = explanation_of(replace(before, decision=replace(made, expected=looked, message=message)))
    assert not any("is expected to" in each for each in after.sentences)
    assert any(each.startswith("It does not start before a quota, ") for each in after.sentences)
    assert after.expected.start_seconds is None


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (f"Waits. {GOES_FIRST}", "No other job starts before it, except one with a deadline "),
        (
            "Waits.",
            "It has waited for longer than the 50 s after which a job goes first, but others may still start before "
            "it: the jobs that were there before its wait need the whole cluster for longer than it has waited.",
        ),
    ],
)
def test_that_a_job_goes_first_is_told_only_where_the_round_says_so(message: str, told: str) -> None:
    made = replace(a_decision("job-1", reason=Reason.WAITING_FOR_RESOURCES, allocation=NOTHING), message=message)
    waits = a_record(state=JobState.QUEUED, wanted=NOTHING)
    turn = Turn(-made.at - 10.0, 50.0)
    case = Case(job=waits, decision=replace(made, at=0.0), now=made.at, turn=turn, policy="optimus")
    later = replace(case, now=made.at + 60.0)  # rounds have decided the same since
    looked = ExpectedTimesRecord(
        job_id="job-1", at=later.now, valid_until=later.now + 99.0, start=None, end=None, steps_left=None
    )
    assert case.decision is not None
    later = replace(later, decision=replace(case.decision, at=-later.now - 60.0, expected=looked))
    for each in (case, later):
        said = explanation_of(each).sentences
        found = [one for one in said if "start before it" in one or "starts before it" in one]
        assert len(found) == 1
        assert found[0].startswith(told)


BY = "by changes of size, lost or hung tasks, pauses or errors"


@pytest.mark.parametrize(
    ("pauses", "told"),
    [
        ([None], f"its training stood still once for a time that is not known, {BY}."),
        ([2.0, None, None], f"its training stood still for 2 s in all, and twice for a time that is not known, {BY}."),
        ([2.0], f"its training stood still for 2 s in all, {BY}."),
        ([], "no change of size, lost task, pause or error stopped its training."),
    ],
    ids=["unknown", "both", "known", "none"],
)
def test_a_stop_of_unknown_length_is_told_as_one(pauses: list[float | None], told: str) -> None:
    members = [
        a_membership(epoch=n, at=10.0 * n, pause_seconds=pause, cause="coordinator_restart")
        for n, pause in enumerate(pauses, 2)
    ]
    ended = a_record(state=JobState.SUCCEEDED, finished_at=130.0)
    story = explanation_of(Case(job=ended, decision=None, now=200.0, memberships=[a_membership(), *members]))
    assert story.sentences[-1].endswith(f"; {told}")


def test_what_a_change_bought_is_without_the_time_in_which_all_tasks_were_stopped() -> None:
    """With them their coordinator: it cannot tell how long that took, but no step came meanwhile."""
    way = ("start", 10.0, 0, 1), ("rescale", 20.0, 100, 2), ("coordinator_restart", 90.0, 900, 2)
    memberships = [
        a_membership(
            epoch=epoch,
            generation=min(epoch, 2),
            cause=cause,
            at=at,
            step=step,
            workers=("w-0", "w-1")[:n],
            servers=(),
            pause_seconds=0.0 if cause == "rescale" else None,
        )
        for epoch, (cause, at, step, n) in enumerate(way, 1)
    ]
    ended = a_record(state=JobState.SUCCEEDED, started_at=10.0, finished_at=100.0, step=1100, step_at=100.0)
    last_steps = {1: LastStep(20.0), 2: LastStep(60.0), 3: LastStep(100.0)}
    case = Case(job=ended, decision=None, now=110.0, memberships=memberships, last_steps=last_steps)
    said = " ".join(explanation_of(case).sentences)
    assert "it made 20 steps per second instead of 10, which saved 50 s." in said
    assert f"its training stood still for 30 s in all, {BY}." in said


@pytest.mark.parametrize(
    ("waited", "knows"),
    [
        (30.0, "last step"),  # a retry
        (300.0, "last step"),
        (300.0, "end"),  # no sample says when the last step was made
        (7200.0, "last step"),  # a resumption of a job that had ended
        (7200.0, "both"),  # its end was told late, as the service was away
    ],
)
@pytest.mark.parametrize("state", [JobState.RUNNING, JobState.FAILED])
def test_what_a_change_bought_is_without_the_wait_after_an_error_or_an_end(
    waited: float, knows: str, state: JobState
) -> None:
    back = 120.0 + waited
    way = ("start", 10.0, 0, 1), ("rescale", 20.0, 100, 2), ("resume", back, 2000, 2)
    memberships = [
        a_membership(
            epoch=epoch,
            generation=epoch,
            cause=cause,
            at=at,
            step=step,
            workers=("w-0", "w-1")[:n],
            servers=(),
            pause_seconds=0.0 if cause == "rescale" else None,
            lost_steps=100 if cause == "resume" else 0,
            ended_at={"last step": None, "end": 120.0, "both": back - 1.0}[knows] if epoch == 2 else None,
        )
        for epoch, (cause, at, step, n) in enumerate(way, 1)
    ]
    finished_at = back + 100.0 if state.is_final else None
    record = a_record(state=state, started_at=10.0, finished_at=finished_at, step=3000, step_at=back + 100.0)
    record = replace(record, running=Allocation(2, 0))
    last_steps = {1: LastStep(20.0), 3: LastStep(back + 100.0)} | ({} if knows == "end" else {2: LastStep(118.0, 2.0)})
    now = back + 110.0
    said = explanation_of(Case(job=record, decision=None, now=now, memberships=memberships, last_steps=last_steps))
    assert "it made 20 steps per second instead of 10, which saved 100 s." in " ".join(said.sentences)


def test_a_job_whose_steps_had_stayed_away_before_it_was_cancelled_is_not_told_to_have_trained_on() -> None:
    ended = a_record(state=JobState.CANCELLED, finished_at=130.0)
    silence = "no step came for 46 s, where one took 0.065 s"
    case = Case(job=ended, decision=None, now=200.0, memberships=[a_membership()], silence_at_its_end=silence)
    assert explanation_of(case).sentences[-1].endswith(f"stopped its training. Before it was cancelled, {silence}.")


@pytest.mark.parametrize(("last_step", "still"), [(20.0, "29 s"), (38.0, "10 s")])
def test_a_job_that_hung_before_it_was_paused_stood_still_since_its_last_step(last_step: float, still: str) -> None:
    way = ("start", 10.0, ("w",)), ("pause", 39.0, ()), ("resume", 49.0, ("w",))
    memberships = [
        a_membership(epoch=epoch, cause=cause, at=at, step=0, workers=workers, servers=(), pause_seconds=None)
        for epoch, (cause, at, workers) in enumerate(way, 1)
    ]
    ended = a_record(state=JobState.SUCCEEDED, finished_at=60.0, started_at=10.0)
    last_steps = {1: LastStep(last_step), 3: LastStep(60.0)}
    story = explanation_of(Case(job=ended, decision=None, now=70.0, memberships=memberships, last_steps=last_steps))
    assert f"its training stood still for {still} in all, {BY}" in story.sentences[-1]


def test_the_waits_after_errors_are_told_after_the_end() -> None:
    joined = [
        MembershipRecord(
            job_id="job-1", epoch=epoch, generation=1, at=at, step=0, workers=("w-0",), servers=(), cause="start"
        )
        for epoch, at in ((1, 10.0), (2, 50.0))
    ]
    failed = a_record(state=JobState.FAILED, finished_at=130.0, retries=2)
    case = Case(job=failed, decision=None, now=200.0, memberships=joined, errors=(90.0, 20.0))
    story = explanation_of(replace(case, starts=(5.0, 45.0, 125.0)))
    assert f"its training stood still for 1 min 10 s in all, {BY}" in story.sentences[-1], "30 s, then 40 s to its end"
    assert "It was tried again twice after an error, which cost it 1 min 10 s." in story.sentences[-1]
    no_room = explanation_of(replace(case, job=replace(failed, retry_at=120.0), starts=(5.0, 45.0))).sentences[-1]
    assert "It was tried again once after an error, and waited for another try when it ended; it waited" in no_room
    none_at_all = replace(case, job=replace(failed, retries=1), memberships=joined[:1], errors=(20.0,))
    assert (
        "After an error it waited 1 min 50 s for another try, which did not come."
        in (explanation_of(none_at_all).sentences[-1])
    )
    ended_before = Case(job=replace(failed, retry_at=390.0), decision=None, now=200.0, memberships=joined)
    assert (
        "It was tried again once after an error, and waited for another try when it ended"
        in (explanation_of(ended_before).sentences[-1])
    )
    never = explanation_of(replace(ended_before, job=replace(failed, retry_at=390.0, retries=1)))
    assert "After an error it waited for another try, which did not come." in never.sentences[-1]


def test_the_time_between_an_end_and_the_resumption_is_told_after_the_last_end() -> None:
    """Retried after an error, cancelled in its next wait, resumed; nothing of that is left in its record."""
    joined = [
        a_membership(epoch=epoch, at=at, cause=cause)
        for epoch, at, cause in ((1, 10.0, "start"), (2, 50.0, "resume"), (3, 120.0, "resume"))
    ]
    ended = a_record(state=JobState.SUCCEEDED, finished_at=150.0, started_at=10.0, retries=0)
    case = Case(job=ended, decision=None, now=200.0, memberships=joined, errors=(60.0, 20.0), ends=(100.0,))
    last = explanation_of(case).sentences[-1]
    assert f"its training stood still for 1 min 30 s in all, {BY}." in last, "30 s, and 60 s with the end in them"
    assert "It was tried again once after an error, which cost it 30 s." in last
    assert "It had ended once before, 20 s of that time, and was resumed." in last
    again = replace(ended, state=JobState.CANCELLED, finished_at=400.0, step_at=250.0)
    last = explanation_of(replace(case, job=again, now=500.0, errors=(), ends=(400.0, 260.0))).sentences[-1]
    assert f"its training stood still for 2 min 20 s in all, {BY}. It had ended once before" in last
    assert "No step came" not in last, "what follows its first end is told as a standstill already"
    failed = replace(case, job=replace(ended, state=JobState.FAILED), errors=(), ends=(150.0, 5.0, 60.0))
    last = explanation_of(failed).sentences[-1]
    assert f"its training stood still for 1 min 00 s in all, {BY}. It had ended twice before" in last, (
        "not what was before it began"
    )


def test_a_job_without_checkpoint_that_failed_is_not_told_to_be_resumed() -> None:
    script = {"task": None, "command": ["python", "train.py"], "working_directory": "/w", "architecture": "script"}
    error: dict[str, Any] = {"retries": 1, "retry_at": 90.0, "last_error": "no disk"}
    waits = a_record(state=JobState.PAUSED, step=20, started_at=1.0, spec=script, **error)
    made = a_decision("job-1", reason=Reason.WAITING_FOR_RETRY)
    kept = replace(waits, profile={"resumes": True})
    told = [explanation_of(Case(job=each, decision=made, now=60.0)).what_would_change_it for each in (waits, kept)]
    assert "optimus retry job-1" in told[0]
    assert "resume" not in told[0]
    assert "resume" in told[1]


A_LIMIT = a_forecast(
    rule="max_steps",
    total_steps={"mean": 60.0, "low": 55.0, "high": 70.0},
    remaining_steps={"mean": 20.0, "low": 15.0, "high": 30.0},
    steps_per_second=1.0,
)


@pytest.mark.parametrize(
    ("message", "phrase"),
    [
        (f"That is more than its project may hold; {NO_END_HELPS}.", "it needs more than its project may hold: "),
        (f"{USED_UP}: its quota is 1 core.", "other jobs of its project leave too little of the project's quota"),
        (
            "Waits: job a of project b makes better use of the room in its quota.",
            "other jobs of its project make better",
        ),
        (f"Waits: quotas leave no room. {RIGHT_OF_OTHERS}", "quotas of other projects give them a right to the room"),
        ("Waits: quotas leave no room.", "quotas leave no room for it: that of its project is used up or too small"),
    ],
)
def test_the_queue_says_which_quota_a_job_waits_for(message: str, phrase: str) -> None:
    decision = replace(a_decision("job-1", reason="WaitingForQuota", allocation=NOTHING), message=message)
    reason, told = waiting_words(decision)
    assert (reason, told.startswith(phrase)) == ("WaitingForQuota", True), told


@pytest.mark.parametrize(
    ("decided", "at", "error", "reason", "told"),
    [
        ("PausedByOwner", 9.0, None, None, "The next scheduling round decides what it gets."),
        ("Cancelling", 9.0, None, None, "The next scheduling round decides what it gets."),
        ("AtMaximum", 5.0, None, None, "The next scheduling round decides what it gets."),
        ("AtMaximum", 5.0, "no disk", "WaitingForRetry", "Waits 30 s after an error (retry 1 of 2): no disk"),
        ("WaitingForRetry", 9.0, "no disk", "WaitingForRetry", "Waits 30 s after an error (retry 1 of 2): no disk"),
        ("WaitingForRetry", 9.0, None, None, "The next scheduling round decides what it gets."),
        ("AtMaximum", 9.0, None, "AtMaximum", "It was given its first tasks."),
        ("WaitingForResources", 5.0, None, "WaitingForResources", "It was given its first tasks."),
    ],
)
def test_a_job_that_was_resumed_or_failed_is_not_told_what_was_decided_before(
    decided: str, at: float, error: str | None, reason: str | None, told: str
) -> None:
    retry: dict[str, Any] = (
        {} if error is None else {"retries": 1, "last_error": error, "retry_at": 40.0, "spec": {"retries": 2}}
    )
    waits = a_record(state=JobState.PAUSED, wanted=NOTHING, wanted_at=8.0, **retry)
    size = NOTHING if decided != "AtMaximum" else Allocation(2, 1)
    decision = a_decision("job-1", at=at, reason=decided, allocation=size)
    found = explanation_of(Case(job=waits, decision=decision, now=10.0))
    assert (found.reason, found.sentences[0]) == (reason, told)
    (queued,) = in_queue([waits], {"job-1": decision}, 10.0)
    assert (queued_body(queued, 10.0).reason == decided) == (reason == decided)


@pytest.mark.parametrize(
    ("reason", "at", "changes", "told"),
    [
        ("WaitingForResources", 5.0, {}, 5.0),
        ("WaitingForResources", 5.0, {"owner_paused_at": 9.0}, 9.0),
        ("PausedByOwner", 5.0, {"owner_paused_at": 9.0}, 9.0),
        ("PausedByOwner", 9.5, {"owner_paused_at": 9.0}, 9.5),
        ("WaitingForResources", 5.0, {"directive": Directive.CANCEL}, None),
        ("Cancelling", 9.0, {"directive": Directive.CANCEL}, 9.0),
        ("PausedByOwner", 5.0, {}, None),
        ("WaitingForResources", 5.0, {"last_error": "no disk", "retry_at": 40.0, "retries": 1}, 5.0),
        ("AtMaximum", 5.0, {"wanted_at": 8.0, "last_error": "no disk", "retry_at": 40.0, "retries": 1}, None),
        ("PausedByOwner", 5.0, {"state": JobState.CANCELLED}, 5.0),
    ],
)
def test_the_age_of_a_decision_is_of_the_one_that_is_told(
    reason: str, at: float, changes: dict[str, Any], told: float | None
) -> None:
    """A job that was paused a second ago was told "Decided PausedByOwner, 36 s ago": so old was the latest round's."""
    size = NOTHING if reason != "AtMaximum" else Allocation(1, 1)
    decision = a_decision("job-1", at=at, reason=reason, allocation=size)
    job = a_record(**{"state": JobState.QUEUED, "wanted": NOTHING, "running": NOTHING} | changes)
    found = explanation_of(Case(job=job, decision=decision, now=10.0))
    assert found.at == (None if told is None else moment(told))
    if "owner_paused_at" in changes:
        first = explanation_of(Case(job=job, decision=None, now=10.0))
        assert (first.reason, first.at) == ("PausedByOwner", moment(9.0)), "also before the first round"


def test_the_queue_says_that_nodes_are_closed_or_lost() -> None:
    waits = replace(a_decision("job-1", reason="NoFeasibleNode", allocation=NOTHING), message="Waits: no node.")
    nodes = Nodes([Node("node-0", Resources(4.0), schedulable=False)])
    closed = replace(waits, message=f"{waits.message} {closed_words(nodes)}")
    assert waiting_words(closed)[1] == "no open node has the room for its tasks, and some nodes are closed or lost"
    assert waiting_words(waits)[1].startswith("no node has the room")


def test_the_queue_says_that_others_make_better_use_of_the_room() -> None:
    decision = a_decision("job-1", reason="WaitingForResources", allocation=NOTHING)
    better = replace(decision, message=f"Waits: {BETTER_USED} that 1 worker would need.")
    assert waiting_words(better)[1] == "other jobs make better use of the room that its minimum would need"
    assert waiting_words(decision)[1].startswith("not even its minimum fits")


def test_who_may_know_of_all_projects_is_told_which_quotas_exceed_the_cluster() -> None:
    quotas = [Quota("vis", cpu=1.0, may_borrow=False), Quota("alpha", cpu=6.0)]
    decision = replace(a_decision("job-1", reason="WaitingForQuota", allocation=NOTHING), message=f"It waits {SHRUNK}.")
    case = Case(job=a_record(wanted=NOTHING), decision=decision, now=10.0, quotas=quotas)
    assert "The quotas of all projects are: alpha 6 cores; vis 1 core." in explanation_of(case).sentences
    for other in (replace(case, quotas=()), replace(case, decision=replace(decision, message="It waits."))):
        assert not [each for each in explanation_of(other).sentences if "alpha" in each]


def test_a_job_that_a_round_let_wait_is_not_said_to_start_at_once() -> None:
    waits = a_decision("job-1", reason="WaitingForQuota", allocation=NOTHING)
    case = Case(job=a_record(wanted=NOTHING), decision=waits, now=10.0)
    found = explanation_of(case)
    assert found.expected.start_seconds is None
    assert any("cannot be said yet" in each for each in found.sentences)


def test_a_job_that_hangs_is_not_promised_an_end() -> None:
    forecast = a_forecast(
        rule="max_steps",
        total_steps={"mean": 60.0, "low": 60.0, "high": 60.0},
        remaining_steps={"mean": 20.0, "low": 20.0, "high": 20.0},
        seconds_per_step={"mean": 3.0, "low": 3.0, "high": 3.0},
    )
    case = Case(job=a_record(wanted=Allocation(1, 0), step=40), decision=a_decision(forecast=forecast), now=20.0)
    begins = [each[: each.index("expected to end")] for each in explanation_of(case).sentences if "to end in" in each]
    hung = replace(case, warnings=("worker 0 hung",))
    doubtful = [each[: each.index("expected to end")] for each in explanation_of(hung).sentences if "to end in" in each]
    assert (begins, doubtful) == (["It is "], ["If its training goes on, it is "])


@pytest.mark.parametrize("wanted", [NOTHING, Allocation(1, 0)], ids=["nothing wanted", "before the next round"])
def test_a_job_that_is_being_cancelled_is_not_said_to_wait_or_to_go_on(wanted: Allocation) -> None:
    record = a_record(
        state=JobState.RUNNING,
        directive=Directive.CANCEL,
        wanted=wanted,
        running=Allocation(1, 0),
        step=40,
        started_at=1.0,
    )
    at = Interval(60.0, 50.0, 80.0)
    times = ExpectedTimesRecord(job_id="job-1", at=10.0, valid_until=99.0, start=at, end=at, steps_left=20.0)
    decision = replace(a_decision("job-1", reason="ClusterFull", allocation=wanted, forecast=A_LIMIT), expected=times)
    hung = "worker 0 hung. Hangs within 60 min: 1; at 6 the job fails."
    cannot = "job-1-worker-0: its node does not answer"
    case = Case(job=record, decision=decision, now=20.0, warnings=[hung], troubles=[cannot])
    case = replace(
        case,
        turn=Turn(70.0, 90.0),
        queue=in_queue([record], {"job-1": decision}, 20.0),
        gives_more=("a node",),
    )
    found = explanation_of(case)
    assert found.sentences == ["Cancelled: its tasks are being stopped.", f"The cluster says: {cannot}"]
    assert (found.reason, found.what_would_change_it) == ("Cancelling", "Nothing: it was cancelled.")
    assert (found.expected.start_seconds, found.expected.finish_seconds) == (None, None)
    line = job_line(record, decision, 20.0)
    assert (line.start_seconds, line.remaining_seconds, line.reason) == (None, None, "Cancelling")
    assert line.progress == pytest.approx(40 / 60)
    assert not case.queue


def test_a_command_that_goes_on_after_all_its_steps_is_not_said_to_end_now() -> None:
    record = a_record(wanted=Allocation(1, 0), step=60, profile={"total_steps": 60})
    zero = {"mean": 0.0, "low": 0.0, "high": 0.0}
    forecast = a_forecast(
        total_steps={"mean": 60.0, "low": 60.0, "high": 60.0},
        remaining_steps=zero,
        seconds_per_step={"mean": 3.0, "low": 3.0, "high": 3.0},
    )
    found = explanation_of(Case(job=record, decision=a_decision(forecast=forecast), now=20.0))
    assert found.expected.finish_seconds is not None
    assert found.expected.finish_seconds.mean == pytest.approx(3.0), "one step has gone on longer: one more is likely"
    assert any("it is finishing" in each for each in found.sentences)
    saves = Case(job=replace(record, step_at=4.0), decision=a_decision(forecast=forecast), now=20.0, gives_more=())
    found = explanation_of(saves)
    (said,) = [each for each in found.sentences if "announced, the last one 16 s ago: it is finishing" in each]
    assert "by that it may end in about 16 s (" in said
    assert found.what_would_change_it.startswith("Nothing: it has made all steps")
    assert found.next_gain is None
    beyond = explanation_of(Case(job=replace(record, step=61), decision=a_decision(forecast=forecast), now=20.0))
    assert any("longer than predicted: by that it may end in " in each for each in beyond.sentences)


def test_a_change_whose_effect_is_not_measured_yet_says_so() -> None:
    memberships = [a_membership(workers=("w",)), a_membership(epoch=2, at=15.0, pause_seconds=0.4)]
    record = a_record(running=Allocation(2, 1), wanted=Allocation(2, 1))
    found = explanation_of(Case(job=record, decision=None, now=20.0, memberships=memberships))
    assert found.last_rescale is not None
    assert found.last_rescale.saved_seconds is None
    assert any("not measured yet" in each for each in found.sentences)
    memberships[1] = replace(memberships[1], lost_steps=160)
    loses = explanation_of(Case(job=record, decision=None, now=20.0, memberships=memberships))
    assert any("stopped training for 0.4 s and lost 160 steps" in each for each in loses.sentences)
    memberships[1] = replace(memberships[1], pause_seconds=0.0)
    loses = explanation_of(Case(job=record, decision=None, now=20.0, memberships=memberships))
    assert any("did not stop training, but lost 160 steps" in each for each in loses.sentences)


def test_the_change_before_a_pause_is_the_last_while_the_job_trained() -> None:
    memberships = [a_membership(workers=("w",)), a_membership(epoch=2, at=15.0, pause_seconds=0.4)]
    paused = a_record(running=Allocation(0, 0), wanted=Allocation(0, 0))
    found = explanation_of(Case(job=paused, decision=None, now=20.0, memberships=memberships))
    assert any(each.startswith("Its last change of size while it trained, ") for each in found.sentences)
    record = a_record(running=Allocation(2, 1), wanted=Allocation(2, 1))
    trains = explanation_of(Case(job=record, decision=None, now=20.0, memberships=memberships))
    assert any(each.startswith("Its last change of size, ") for each in trains.sentences)


def a_change_of_size_and_then(*then: str) -> Case:
    """A job 30 s after it grew from one to two workers, with these memberships since: cause and workers."""
    grown = a_membership(epoch=2, at=20.0, step=28, workers=("x", "y"), pause_seconds=0.4)
    memberships = [a_membership(at=5.6, workers=("x",)), grown]
    for epoch, (cause, *workers) in enumerate(map(str.split, then), 3):
        found = a_membership(epoch=epoch, at=40.0, step=88, cause=cause, workers=tuple(workers))
        memberships.append(found if workers else replace(found, servers=()))
    has = Allocation(len(memberships[-1].workers), len(memberships[-1].servers))
    job = a_record(running=has, wanted=has, step=118, step_at=50.0)
    return Case(job=job, decision=None, now=50.0, memberships=memberships)


IT_MAKES = "it makes 3 steps per second instead of 2, which has saved 15 s so far."
IT_MADE = "it made 3 steps per second instead of 2, which saved 9.6 s."


@pytest.mark.parametrize(
    ("then", "which", "told"),
    [
        ([], "size, 30 s ago,", IT_MAKES),
        (["replaced x y"], "size, 30 s ago,", IT_MAKES),
        (["pause"], "size while it trained, 30 s ago,", IT_MADE),
        (["pause", "resume x y"], "size, 30 s ago,", IT_MADE),
        (["pause", "resume x y z"], "size while it trained, 30 s ago,", IT_MADE),
        (["pause", "resume x"], "size while it trained, 30 s ago,", IT_MADE),
        (["worker_lost x"], "size while it trained, 30 s ago,", IT_MADE),
        (["worker_lost x", "replaced x z"], "size, 30 s ago,", IT_MAKES),
    ],
)
def test_a_change_of_size_is_told_in_the_past_once_it_was_paused_or_has_another_size(
    then: list[str], which: str, told: str
) -> None:
    change = f"Its last change of {which} from 1 worker and 1 server to 2 workers and 1 server stopped training for"
    assert f"{change} 0.4 s; {told}" in explanation_of(a_change_of_size_and_then(*then)).sentences


@pytest.mark.parametrize(("then", "which"), [([], "size"), (["pause", "resume x y z"], "size while it trained")])
def test_an_ended_job_is_not_told_that_a_size_before_a_pause_was_its_last(then: list[str], which: str) -> None:
    case = a_change_of_size_and_then(*then)
    ended = replace(case.job, state=JobState.SUCCEEDED, finished_at=50.0, running=NOTHING)
    told = explanation_of(replace(case, job=ended)).sentences
    assert any(each.startswith(f"Its last change of {which} from 1 worker and 1 server to ") for each in told)


def a_growth_on_the_way(*, n_formed: int = 6, asks: tuple[int, int] = (3, 5), step: int = 813) -> Case:
    """A job that grows from 3 workers and 2 servers to 3 and 5; as two of its workers move, it trains with 1 meanwhile.

    Before that it grew from 3 workers and 1 server.
    """
    way = [
        (1, 6.6, 0, (3, 1), 0.0),
        (2, 40.0, 300, (3, 2), 0.2),
        (3, 50.0, 400, (1, 2), 0.1),
        (3, 69.0, 455, (1, 5), 0.2),
        (3, 73.0, 468, (3, 5), 0.2),
        (3, 74.0, 478, (3, 5), 0.0),
    ]
    memberships = [
        a_membership(
            epoch=epoch,
            generation=generation,
            at=at,
            step=reached,
            workers=tuple("vwx"[:workers]),
            servers=tuple("abcde"[:servers]),
            pause_seconds=pause,
            **({"cause": "replaced"} if epoch == 6 else {}),
        )
        for epoch, (generation, at, reached, (workers, servers), pause) in enumerate(way, 1)
    ]
    formed = memberships[:n_formed]
    has = Allocation(len(formed[-1].workers), len(formed[-1].servers))
    return Case(
        job=a_record(running=has, wanted=Allocation(*asks), step=step, step_at=100.0),
        decision=None,
        now=100.0,
        memberships=formed,
        sizes_given=[(5.0, Allocation(3, 1)), (39.0, Allocation(3, 2)), (49.0, Allocation(3, 5))],
    )


def test_a_change_of_size_is_judged_from_the_size_before_it_with_all_sizes_between() -> None:
    """Not against 1 worker and 5 servers, with which it trained for 4 seconds of its own growth."""
    found = explanation_of(a_growth_on_the_way())
    effect = found.last_rescale
    assert effect is not None
    assert (effect.before.workers, effect.before.servers, effect.after.servers) == (3, 2, 5)
    assert effect.stopped_seconds == pytest.approx(0.5)
    with_it, between = 1.0 + 26.0, 18.8 + 3.8
    slow = (400 - 300) / 9.9
    assert effect.saved_seconds == pytest.approx((813 - 400) / slow - (with_it + 0.5 + between))
    told = next(each for each in found.sentences if each.startswith("Its last change"))
    assert told.endswith(
        "from 3 workers and 2 servers to 3 workers and 5 servers took 23 s, on the way with 1 worker and 2 servers, "
        "then 1 worker and 5 servers, and stopped training for 0.5 s; it makes 12.8 steps per second instead of "
        "10.1, which has cost 9.2 s more than it saved."
    )


@pytest.mark.parametrize(("n_formed", "has"), [(3, "1 worker and 2 servers"), (4, "1 worker and 5 servers")])
def test_a_size_on_the_way_is_not_told_as_a_change_of_its_own(n_formed: int, has: str) -> None:
    told = explanation_of(a_growth_on_the_way(n_formed=n_formed, step=460)).sentences
    way = "The change from 3 workers and 2 servers to 3 workers and 5 servers is under way"
    assert f"{way}: until its new tasks take part, it trains with {has}." in told
    before = "from 3 workers and 1 server to 3 workers and 2 servers stopped training for 0.2 s"
    last = next(each for each in told if each.startswith("Its last change of size before that, "))
    assert f"{before}; it made 10.1 steps per second instead of 9.04, which saved " in last


def test_an_ended_job_was_changed_as_often_as_its_description_counts() -> None:
    case = a_growth_on_the_way()
    ended = replace(case.job, state=JobState.SUCCEEDED, finished_at=100.0, running=NOTHING, rescales=4)
    told = explanation_of(replace(case, job=ended)).sentences[-1]
    changed = "Its size was changed 4 times while it trained, its tasks were replaced once at the same size"
    assert f"{changed}; its training stood still" in told


def test_a_change_that_was_taken_back_on_its_way_is_no_change() -> None:
    case = a_growth_on_the_way(n_formed=3, asks=(3, 2), step=460)
    taken_back = replace(case, sizes_given=[*case.sizes_given, (55.0, Allocation(3, 2))])
    told = explanation_of(taken_back).sentences
    again = "It trains with 1 worker and 2 servers until new tasks take part, with which it has 3 workers and 2 servers"
    assert f"{again} again." in told
    back = a_membership(epoch=4, at=80.0, step=460, workers=("v", "w", "x"), servers=("a", "b"))
    has = replace(taken_back.job, running=Allocation(3, 2))
    done = explanation_of(replace(taken_back, job=has, memberships=[*case.memberships, back]))
    assert done.last_rescale is not None
    assert (done.last_rescale.before.servers, done.last_rescale.after.servers) == (1, 2)


def test_a_replaced_loss_is_no_change_of_size() -> None:
    """The two of three workers with which the job trained until the third was replaced gave it nothing."""
    case = a_growth_on_the_way(n_formed=2, asks=(3, 2), step=460)
    lost = a_membership(
        epoch=3, generation=2, at=60.0, step=350, workers=("v", "w"), servers=("a", "b"), cause="worker_lost"
    )
    again = replace(case.memberships[1], epoch=4, generation=3, at=90.0, step=400)
    for later in ([lost], [lost, again]):
        found = explanation_of(replace(case, memberships=[*case.memberships, *later])).last_rescale
        assert found is not None
        assert (found.before.servers, found.after.servers) == (1, 2)


def test_a_loss_is_told_and_what_a_change_bought_counts_on_when_all_tasks_are_back() -> None:
    way = [
        ("start", 10.0, 0, 1, None),
        ("rescale", 29.0, 68, 3, 0.02),
        ("worker_lost", 42.0, 203, 2, 0.07),
        ("replaced", 45.0, 224, 3, 0.02),
    ]
    memberships = [
        a_membership(
            epoch=epoch,
            cause=cause,
            at=at,
            step=step,
            workers=tuple("uvw"[:workers]),
            servers=("s",),
            pause_seconds=still,
        )
        for epoch, (cause, at, step, workers, still) in enumerate(way, 1)
    ]
    asks = Allocation(3, 1)
    sizes_given = [(9.0, Allocation(1, 1)), (20.0, asks), (80.0, Allocation(2, 1))]
    job = a_record(running=Allocation(2, 1), wanted=asks, step=214, step_at=43.5)
    case = Case(job=job, decision=None, now=44.0, memberships=memberships[:3], sizes_given=sizes_given[:2])
    told = explanation_of(case).sentences
    assert "It lost w; it went on 2 s ago." in told
    trains = replace(
        case, now=60.0, memberships=memberships, job=replace(job, running=Allocation(3, 1), step=374, step_at=60.0)
    )
    found = explanation_of(trains)
    assert "It lost w; it went on 18 s ago, and has had 3 workers and 1 server again for 15 s." in found.sentences
    hung = Standstill("a worker is being replaced; its workers hung", is_stalled=True, is_replaced=True, hung_at=374)
    lost_again = explanation_of(replace(trains, still={"job-1": hung})).sentences
    assert "It lost w; it went on 18 s ago." in lost_again, "of another one that is gone since, no membership tells yet"
    steps, seconds = (203 - 68) + (374 - 224), (42.0 - 0.07 - 29.0) + (60.0 - 45.0)
    slow = 68 / (29.0 - 0.02 - 10.0)
    assert found.last_rescale is not None
    assert found.last_rescale.steps_per_second_after == pytest.approx(steps / seconds)
    assert found.last_rescale.saved_seconds == pytest.approx(steps / slow - seconds - 0.02)
    assert any(each.startswith("Its last change of size, 31 s ago, from 1 worker and") for each in found.sentences)
    # A size that is decided later is not one that the loss gave it.
    later = explanation_of(replace(trains, sizes_given=sizes_given)).last_rescale
    assert later == found.last_rescale
    ended = replace(trains.job, state=JobState.SUCCEEDED, finished_at=61.0, running=NOTHING, rescales=1)
    story = explanation_of(replace(trains, job=ended)).sentences[-1]
    assert "Its size was changed once while it trained, it lost tasks once; its training stood still" in story


def test_a_connection_that_broke_is_no_lost_task() -> None:
    memberships = [a_membership(), a_membership(epoch=2, at=15.0, cause="worker_lost", pause_seconds=0.1)]
    record = a_record(running=Allocation(2, 1), wanted=Allocation(2, 1))
    told = explanation_of(Case(job=record, decision=None, now=20.0, memberships=memberships)).sentences
    assert not any("lost" in each for each in told)


def test_tasks_that_were_replaced_are_no_change_of_size() -> None:
    memberships = [a_membership(), a_membership(epoch=2, at=15.0, pause_seconds=0.4, cause="replaced")]
    ended = a_record(state=JobState.SUCCEEDED, finished_at=54.0)
    found = explanation_of(Case(job=ended, decision=None, now=60.0, memberships=memberships))
    assert found.last_rescale is None
    changed = "Its size was never changed while it trained, its tasks were replaced once at the same size"
    assert changed in found.sentences[-1]


def test_another_size_after_a_pause_is_no_change_while_it_trained() -> None:
    none: tuple[str, ...] = ()
    memberships = [
        a_membership(workers=("w",), cause="start"),
        a_membership(epoch=2, at=15.0, workers=none, servers=none),
        a_membership(epoch=3, at=20.0, workers=("w",), cause="start"),
        a_membership(epoch=4, at=21.0, workers=("w", "x"), cause="start"),
    ]
    ended = a_record(state=JobState.SUCCEEDED, finished_at=54.0)
    found = explanation_of(Case(job=ended, decision=None, now=60.0, memberships=memberships))
    assert "Its size was never changed while it trained, and it was without tasks once" in found.sentences[-1]


def test_an_ended_job_was_without_tasks_until_it_had_some_and_stopped_until_they_trained() -> None:
    memberships = [
        a_membership(workers=("w",), servers=(), cause="start", pause_seconds=None),
        a_membership(epoch=2, at=15.0, workers=(), servers=(), pause_seconds=None),
        a_membership(epoch=3, at=29.0, workers=("w",), servers=(), cause="resume", pause_seconds=None),
    ]
    ended = a_record(state=JobState.SUCCEEDED, finished_at=54.0)
    case = Case(job=ended, decision=None, now=60.0, memberships=memberships, starts=[1.0, 18.0])
    told = explanation_of(case).sentences[-1]
    assert "it was without tasks once, for 3 s; " in told
    retried = explanation_of(replace(case, job=replace(ended, retries=1), errors=[40.0])).sentences[-1]
    assert "it was without tasks once, for 3 s (waits for retries not counted); " in retried
    assert "its training stood still for 14 s in all" in told
    for state, told_end in ((JobState.CANCELLED, "No step came in its last 25 s"), (JobState.SUCCEEDED, "")):
        ended_so = replace(ended, state=state, step_at=20.0)
        told = explanation_of(replace(case, job=ended_so)).sentences[-1]
        assert ("No step came" in told) == bool(told_end)
        assert told_end in told
    began_later = explanation_of(replace(case, memberships=memberships[1:])).sentences[-1]
    assert "without tasks" not in began_later, "it had not begun: that is told as the time before its start"
    assert "pause or error stopped its training" in began_later


@pytest.mark.parametrize(("state", "waited"), [(JobState.QUEUED, "15 s"), (JobState.PAUSED, "5 s")])
def test_one_that_was_given_tasks_and_lost_them_before_it_trained_has_waited_since_it_came(
    state: JobState, waited: str
) -> None:
    job = a_record(state=state, wanted=NOTHING, created_at=5.0, wanted_at=15.0)
    case = Case(job=job, decision=None, now=20.0)
    assert f"It has waited for {waited}." in explanation_of(case).sentences


# --- the list of reasons ---------------------------------------------------------------------------------------------


def test_the_documentation_lists_every_reason() -> None:
    assert set(TEXTS) == {reason.value for reason in Reason}
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    table, found, _ = rest.partition(END)
    assert before
    assert found
    assert table == as_markdown(), "run `python -m tests.service.seeing.explain_page`"


def test_the_order_of_each_policy_is_told() -> None:
    assert ORDERS.keys() == POLICIES.keys()


@pytest.mark.parametrize(
    ("rule", "low", "told"),
    [
        (
            {"max_steps": 60, "target_loss": 0.1},
            60.0,
            ["Its limit of steps is expected to end it: that its loss does so before"],
        ),
        ({"max_steps": 60, "target_loss": 0.1}, 40.0, []),
        ({"max_steps": 60}, 60.0, []),
    ],
    ids=["surely the limit", "doubtful", "no other end"],
)
def test_a_limit_that_is_told_without_doubt_may_be_missed(rule: dict[str, Any], low: float, told: list[str]) -> None:
    total, left = ({"mean": end, "low": begin, "high": end} for end, begin in ((60.0, low), (50.0, low - 10.0)))
    pace = {"mean": 1.0, "low": 0.9, "high": 1.1}
    made = a_forecast(total_steps=total, remaining_steps=left, rule="max_steps", seconds_per_step=pace)
    decision = a_decision("job-1", allocation=Allocation(1, 1), previous=Allocation(1, 1), forecast=made)
    trains = a_record(wanted=Allocation(1, 1), running=Allocation(1, 1), step=10, spec={"convergence": rule})
    found = explanation_of(Case(job=trains, decision=decision, now=10.0)).sentences
    assert [each.partition(" has a probability")[0] for each in found if "Its limit" in each] == told


@pytest.mark.parametrize(("low", "is_told"), [(60.0, True), (40.0, False)], ids=["first run", "others stopped early"])
def test_a_script_may_stop_by_itself_before_the_steps_that_it_tells(low: float, is_told: bool) -> None:
    total, left = ({"mean": end, "low": begin, "high": end} for end, begin in ((60.0, low), (50.0, low - 10.0)))
    pace = {"mean": 1.0, "low": 0.9, "high": 1.1}
    made = a_forecast(total_steps=total, remaining_steps=left, rule="command_ends", seconds_per_step=pace)
    size, spec = Allocation(1, 0), {"task": None, "command": ["python", "train.py"]}
    decision = a_decision("job-1", allocation=size, previous=size, forecast=made)
    trains = a_record(wanted=size, running=size, step=10, spec=spec)
    found = explanation_of(Case(job=trains, decision=decision, now=10.0)).sentences
    sentence = "By then it makes the 60 steps that it tells: it ends sooner if it stops by itself before."
    assert (sentence in found) == is_told


@pytest.mark.parametrize(("profile", "is_told"), [(None, True), ({"total_steps": 60}, False)])
def test_a_script_of_unknown_length_may_end_before_its_limit_of_steps(
    profile: dict[str, Any] | None, is_told: bool
) -> None:
    total, left = {"mean": 60.0, "low": 60.0, "high": 60.0}, {"mean": 50.0, "low": 50.0, "high": 50.0}
    pace = {"mean": 1.0, "low": 0.9, "high": 1.1}
    made = a_forecast(total_steps=total, remaining_steps=left, rule="max_steps", seconds_per_step=pace)
    size = Allocation(1, 0)
    spec = {"task": None, "command": ["python", "train.py"], "convergence": {"max_steps": 60}}
    trains = a_record(wanted=size, running=size, step=10, spec=spec, profile=profile)
    decision = a_decision("job-1", allocation=size, previous=size, forecast=made)
    found = explanation_of(Case(job=trains, decision=decision, now=10.0)).sentences
    told = "Its limit of steps ends it then, if its command does not end by itself before."
    assert (told in found) == is_told
    assert any("is expected to end in" in each for each in found)


@pytest.mark.parametrize(
    ("part", "at_once", "ends", "told"),
    [
        (1.0, 1.0, 50.0, ", with the end of first (first)"),
        (1.0, 1.0, 20.0, ""),
        (0.8, 0.6, 50.0, ", most likely with the end of first (first)"),
        (1.0, 0.5, 20.0, ", after the end of first (first)"),
        (1.0, 0.4, 20.0, ", after the end of first (first) and that of a job that starts before it"),
        (0.6, 0.0, 20.0, ", most likely after the end of first (first) and that of a job that starts before it"),
        (0.5, 0.5, 50.0, ""),
    ],
)
def test_the_end_that_a_told_start_waits_for_is_named(part: float, at_once: float, ends: float, told: str) -> None:
    first, waits = a_record("first"), a_record("waits", state=JobState.QUEUED, wanted=NOTHING)
    at = Interval(60.0, 50.0, 80.0)
    times = ExpectedTimesRecord(job_id="waits", at=10.0, valid_until=99.0, start=at, end=None, steps_left=None)
    end = replace(times, job_id="first", start=None, end=Interval(ends, ends - 5.0, ends + 5.0))
    its = replace(a_decision("first", allocation=Allocation(1, 1)), expected=end)
    times = replace(times, behind=(Awaited(part, first, its),), at_once={"first": at_once})
    decision = replace(a_decision("waits", allocation=NOTHING), expected=times)
    case = Case(job=waits, decision=decision, now=10.0, others={"first": first})
    (start,) = [each for each in explanation_of(case).sentences if "expected to start" in each]
    assert start.endswith(f"80 % probability){told}.")
    queue = in_queue([waits], {"waits": decision}, 10.0)
    (start,) = [each for each in explanation_of(replace(case, queue=queue)).sentences if "expected to start" in each]
    assert "a job that starts before it" not in start, "it is number 1"
    assert ("after the end of first (first)." in start) == ("after the end" in told)
    late = replace(decision, expected=replace(times, start=Interval(900.0, 50.0, 8000.0)))
    (start,) = [each for each in explanation_of(replace(case, decision=late)).sentences if "expected to start" in each]
    assert "with the end" not in start, "it is told for 14 minutes after that"


def test_that_nothing_was_heard_of_a_job_since_the_service_was_away_is_said_instead_of_its_end() -> None:
    record = a_record(state=JobState.RUNNING, wanted=Allocation(1, 0), running=Allocation(1, 0), step=50)
    said: dict[str, Any] = {"total_steps": {"mean": 500.0, "low": 400.0, "high": 600.0}, "rule": "max_steps"}
    decision = a_decision(allocation=Allocation(1, 0), previous=Allocation(1, 0), forecast=a_forecast(**said))
    still = {"job-1": Standstill("not heard of", is_stalled=False, is_unheard=True)}
    told = explanation_of(Case(job=record, decision=decision, now=60.0, still=still))
    assert told.expected.finish_seconds is None
    assert "Not heard of." in told.sentences
    assert "When it ends can be said as soon as it is heard of again, within seconds if it trains." in told.sentences


def test_of_a_job_that_goes_on_since_the_look_neither_its_end_nor_a_start_behind_it_is_told() -> None:
    """It was told the one for 7 s, and the other job that nothing tells when it ends."""
    runs = {"state": JobState.RUNNING, "step": 250, "wanted": Allocation(1, 1), "running": Allocation(1, 1)}
    hung, waits = a_record("hung", **runs), a_record("waits", state=JobState.QUEUED, wanted=NOTHING)
    pace, steps = dict.fromkeys(("mean", "low", "high"), 2.0), {"mean": 500.0, "low": 400.0, "high": 600.0}
    said: dict[str, Any] = {"total_steps": steps, "seconds_per_step": pace, "rule": "max_steps"}
    looked = ExpectedTimesRecord(job_id="hung", at=10.0, valid_until=99.0, start=None, end=None, steps_left=250.0)
    size = {"allocation": Allocation(1, 1), "previous": Allocation(1, 1)}
    its = replace(a_decision("hung", **size, forecast=a_forecast(**said)), expected=looked)
    behind = replace(a_decision("waits", allocation=NOTHING), expected=replace(looked, job_id="waits"))
    decisions, others = {"hung": its, "waits": behind}, {"hung": hung, "waits": waits}
    told = explanation_of(Case(job=hung, decision=its, now=12.0, decisions=decisions, others=others))
    assert told.expected.finish_seconds is None
    words = "When it ends is told by the next look at the queue: at the last one nothing told whether it goes on."
    assert words in told.sentences
    unmeasured = replace(its, expected=replace(looked, steps_left=None))
    told = explanation_of(Case(job=hung, decision=unmeasured, now=12.0, others=others))
    assert words not in told.sentences, "nothing is known of its speed: the next look knows no more"
    case = Case(job=waits, decision=behind, now=12.0, decisions=decisions, others=others)
    assert any("hung (hung) may be in its way" in each for each in explanation_of(case).sentences)
    unknown = replace(its, forecast=a_forecast())
    told = explanation_of(Case(job=hung, decision=unknown, now=12.0, others=others))
    assert not any("is told by the next look" in each for each in told.sentences)
    newer = replace(its, at=11.0)
    known = explanation_of(replace(case, job=hung, decision=newer, decisions=decisions | {"hung": newer})).expected
    assert known.finish_seconds is not None, "a round has learned it since"


def test_a_start_with_the_end_of_a_job_that_has_stalled_since_the_look_is_said_to_be_no_longer_known() -> None:
    """Another one's end may let it in: the next look says so."""
    runs = {"state": JobState.RUNNING, "step": 5, "wanted": Allocation(1, 1), "running": Allocation(1, 1)}
    hangs, waits = a_record("hangs", **runs), a_record("waits", state=JobState.QUEUED, wanted=NOTHING)
    at = Interval(60.0, 50.0, 80.0)
    end = ExpectedTimesRecord(job_id="hangs", at=10.0, valid_until=99.0, start=None, end=at)
    behind = (Awaited(1.0, hangs, replace(a_decision("hangs", allocation=Allocation(1, 1)), expected=end)),)
    times = replace(end, job_id="waits", start=at, end=None, behind=behind, at_once={"hangs": 1.0})
    decision = replace(a_decision("waits", allocation=NOTHING), expected=times)
    still = {"hangs": Standstill("no step came for 40 s, where one took 2.0 s", is_stalled=True)}
    case = Case(job=waits, decision=decision, now=20.0, others={"hangs": hangs}, still=still)
    told = (
        "When it will start cannot be said yet: at the last look at the queue that was likely with the end of hangs "
        "(hangs), and nothing tells any more when that is."
    )
    assert told in explanation_of(case).sentences
    assert told not in explanation_of(replace(case, still={})).sentences
    unseen = explanation_of(replace(case, others={})).sentences
    assert not any("hangs" in each for each in unseen)


@pytest.mark.parametrize(("at", "told"), [(55.0, "with"), (60.0, "after")])
def test_a_start_that_is_told_for_later_than_the_end_is_not_told_with_it(at: float, told: str) -> None:
    """The end comes by 51 s, and a start-up is a few seconds."""
    first = a_record("first", state=JobState.RUNNING, step=5, wanted=Allocation(1, 1), running=Allocation(1, 1))
    waits = a_record("waits", state=JobState.QUEUED, wanted=NOTHING)
    times = ExpectedTimesRecord(
        job_id="waits", at=10.0, valid_until=99.0, start=Interval(at, 49.0, 80.0), end=None, steps_left=None
    )
    end = replace(times, job_id="first", start=None, end=Interval(50.0, 49.0, 51.0))
    its = replace(a_decision("first", allocation=Allocation(1, 1), forecast=A_LIMIT), expected=end)
    times = replace(times, behind=(Awaited(1.0, first, its),), at_once={"first": 1.0})
    decision = replace(a_decision("waits", allocation=NOTHING), expected=times)
    case = Case(job=waits, decision=decision, now=10.0, others={"first": first})
    (start,) = [each for each in explanation_of(case).sentences if "expected to start" in each]
    assert f", {told} the end of first (first)." in start


def test_jobs_before_it_in_the_queue_are_named_where_their_ends_are_not_known() -> None:
    first, waits, other = (
        a_record(each, state=JobState.QUEUED, wanted=NOTHING) for each in ("first", "waits", "other")
    )
    hangs = a_record("hangs")
    times = ExpectedTimesRecord(job_id="waits", at=10.0, valid_until=99.0, start=None, end=None, steps_left=None)
    decision = replace(a_decision("waits", allocation=NOTHING), expected=times)
    soon = replace(times, job_id="first", start=Interval(60.0, 50.0, 80.0))
    decisions = {"waits": decision, "first": replace(decision, job_id="first", expected=soon)}
    queue = in_queue([first, waits, other], decisions, 10.0)
    case = Case(job=waits, decision=decision, now=10.0, others={"first": first, "hangs": hangs}, queue=queue)
    assert any(
        each.endswith("first (first), hangs (hangs) may be in its way, and nothing tells when they end.")
        for each in explanation_of(case).sentences
    )
    hidden = explanation_of(replace(case, others={"hangs": hangs})).sentences
    assert not any("(first)" in each for each in hidden), "a job that its reader may not see"
    decisions["first"] = replace(decision, job_id="first")
    queue = in_queue([first, waits, other], decisions, 10.0)
    told = explanation_of(replace(case, queue=queue)).sentences
    assert any("said: hangs (hangs) may be in its way" in each for each in told), "first waits for the same"


@pytest.mark.parametrize("may_borrow", [True, False])
def test_where_a_project_may_not_borrow_jobs_of_others_are_not_in_the_way(may_borrow: bool) -> None:
    waits = a_record("waits", state=JobState.QUEUED, wanted=NOTHING)
    own, of_others = a_record("own"), replace(a_record("foreign"), project="theirs")
    times = ExpectedTimesRecord(job_id="waits", at=10.0, valid_until=99.0, start=None, end=None, steps_left=None)
    decision = replace(a_decision("waits", allocation=NOTHING), expected=times, reason="WaitingForQuota")
    others = {each.id: each for each in (own, of_others)}
    told = explanation_of(Case(job=waits, decision=decision, now=10.0, others=others, may_borrow=may_borrow)).sentences
    named = "own (own), foreign (foreign)" if may_borrow else "own (own)"
    assert any(f"said: {named} may be in its way" in each for each in told), told


def test_those_before_a_job_are_known_by_the_ends_that_they_are_told_to_start_with() -> None:
    jobs = [a_record(each, state=JobState.QUEUED, wanted=NOTHING) for each in ("first", "rarely", "waits", "later")]
    starts = zip(jobs, (0.9, 0.3, 0.9, 0.9), (20.0, 30.0, 40.0, 50.0), strict=True)
    decisions = {}
    for each, part, at in starts:
        start = Interval(at, at - 5.0, at + 5.0)
        times = ExpectedTimesRecord(
            job_id=each.id, at=10.0, valid_until=99.0, start=start, end=None, steps_left=None, at_once={"runs": part}
        )
        decisions[each.id] = replace(a_decision(each.id, allocation=NOTHING), expected=times)
    queue = in_queue(jobs, decisions, 10.0)
    assert started_with_ends(queue, "waits") == {"runs": {"first"}}
    assert started_with_ends(queue, "first") == {}


def test_where_one_end_now_would_start_another_than_the_queue_says_it_is_told() -> None:
    first, second = (a_record(each, state=JobState.QUEUED, wanted=NOTHING) for each in ("first", "second"))
    decisions = {}
    for each, at in ((first, 20.0), (second, 23.0)):
        start = Interval(at, at - 5.0, at + 5.0)
        times = ExpectedTimesRecord(job_id=each.id, at=10.0, valid_until=99.0, start=start, end=None, steps_left=None)
        decisions[each.id] = replace(a_decision(each.id, allocation=NOTHING), expected=times)
    queue = in_queue([first, second], decisions, 10.0)

    def told(job: JobRecord, with_one_end: WithOneEnd, others: Sequence[JobRecord]) -> str:
        known = {each.id: each for each in others}
        case = Case(job=job, decision=decisions[job.id], now=10.0, others=known, queue=queue, with_one_end=with_one_end)
        return " ".join(explanation_of(case).sentences)

    now = "That is by the starts that are foreseen: if one of those with tasks ended now,"
    ends = WithOneEnd(sooner=frozenset({"second"}))
    assert f"{now} second (second) may start before it." in told(first, ends, [second])
    assert f"{now} 1 that waits may start before it." in told(first, ends, [])
    assert f"{now} it may start before first (first)." in told(second, WithOneEnd(later=frozenset({"first"})), [first])
    untold = {each: replace(decision, expected=None) for each, decision in decisions.items()}
    queue, decisions = in_queue([first, second], untold, 10.0), untold
    assert "That is no order of starts: if one of those with tasks ended now, second" in told(first, ends, [second])
    as_shown = WithOneEnd(frozenset({"first"}), frozenset({"first"}))
    assert now not in told(first, as_shown, [second])


def test_a_look_of_before_a_job_was_resumed_names_nobody_in_its_way() -> None:
    """It was paused by its owner then, and nobody waits for anything."""
    resumed = a_record("waits", state=JobState.PAUSED, started_at=1.0, wanted=NOTHING, wanted_at=2.0, retry_at=20.0)
    assert resumed.waits_since == 20.0
    times = ExpectedTimesRecord(job_id="waits", at=10.0, valid_until=99.0, start=None, end=None, steps_left=None)
    decision = replace(a_decision("waits", allocation=NOTHING), expected=times)
    case = Case(job=resumed, decision=decision, now=21.0, others={"hangs": a_record("hangs")})
    told = [each for each in explanation_of(case).sentences if "cannot be said" in each]
    assert any(
        "When it will go on cannot be said yet" in each and each.endswith("was not since its wait began.")
        for each in told
    )
    assert not any("in its way" in each for each in told)


def test_a_promise_that_no_quota_allows_any_more_is_not_told_as_one() -> None:
    kept: dict[str, Any] = {"promised_deadline": 100.0, "promised_at": 1.0, "spec": {"deadline_seconds": 100.0}}
    waits = a_record("waits", state=JobState.PAUSED, started_at=1.0, wanted=NOTHING, wanted_at=2.0, **kept)
    decision = replace(a_decision("waits", allocation=NOTHING), message=f"Waits: {NO_END_HELPS}.")
    sentences = explanation_of(Case(job=waits, decision=decision, now=10.0)).sentences
    assert "Its deadline was promised, but cannot be kept as things are." in sentences
    assert not any("it goes before jobs" in each for each in sentences)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        (10.0, "Its deadline at 1970-01-01 00:01:40 UTC cannot be promised as things are."),
        (110.0, "Its deadline passed at 1970-01-01 00:01:40 UTC."),
    ],
)
def test_a_job_that_no_quota_lets_start_is_told_of_its_deadline(now: float, told: str) -> None:
    waits = a_record("waits", state=JobState.QUEUED, wanted=NOTHING, spec={"deadline_seconds": 100.0}, created_at=0.0)
    decision = replace(a_decision("waits", allocation=NOTHING), message=f"Waits: {NO_END_HELPS}.")
    assert told in explanation_of(Case(job=waits, decision=decision, now=now)).sentences


@pytest.mark.parametrize(("retries", "retry_at", "is_told"), [(1, 5.0, True), (0, 5.0, False), (1, None, False)])
def test_a_job_whose_wait_after_an_error_is_over_is_told_of_the_error(
    retries: int, retry_at: float | None, is_told: bool
) -> None:
    waits = a_record(state=JobState.PAUSED, wanted=NOTHING, step=20, spec={"retries": 2})
    waits = replace(waits, retries=retries, retry_at=retry_at, last_error="ValueError: bad batch 20")
    told = explanation_of(Case(job=waits, decision=a_decision("job-1", allocation=NOTHING), now=60.0)).sentences
    error = "Its last try ended with an error (retry 1 of 2): ValueError: bad batch 20."
    assert any(each.startswith(error) for each in told) == is_told


@pytest.mark.parametrize("seconds", [0.0, 30.0])
def test_a_retry_that_is_there_is_told_where_its_owner_allows_none_any_more(seconds: float) -> None:
    waits = a_record(state=JobState.PAUSED, wanted=NOTHING, step=20, spec={"retries": 0})
    waits = replace(waits, retries=1, retry_at=60.0 + seconds, last_error="ValueError: bad batch 20")
    decision = a_decision("job-1", allocation=NOTHING, reason="WaitingForRetry")
    told = explanation_of(Case(job=waits, decision=decision, now=60.0))
    assert "retry 1 of 1" in " ".join([told.message, *told.sentences])
