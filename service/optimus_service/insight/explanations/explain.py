"""Why a job has what it has: in sentences and in numbers, from rows alone. Pure.

::

    state ─▶ this allocation, and why ─▶ gain of its next task against the marginal job's ─▶ what would change it
          ─▶ expected start and end (`start_and_end`) ─▶ what the last rescale cost and bought (`history`)
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from optimus_contract import answers
from optimus_contract.command import is_distributed
from optimus_scheduler.explain import next_task
from optimus_scheduler.model import Allocation, Decision, Reason
from optimus_scheduler.quota_words import quotas_told
from optimus_scheduler.what_if import LACKING_CAPACITY, MEASUREMENT, NEXT_ROUND, NOT_COMPETING, Behind, is_more
from optimus_service.insight.explanations.case import Case
from optimus_service.insight.explanations.history import (
    is_changing,
    last_rescale,
    on_its_history,
    on_lost_tasks,
    on_the_last_rescale,
    size_before,
)
from optimus_service.insight.explanations.start_and_end import (
    by_what,
    expected_of,
    frees_room,
    on_a_cut_ahead,
    on_lost_work,
    on_the_deadline,
    on_the_end,
    on_waiting,
    on_what_its_rule_needs,
    sooner_than_shown,
    until_places_are_left,
)
from optimus_service.insight.format import finite, moment, size
from optimus_service.insight.jobs.bodies import allocation_body
from optimus_service.insight.jobs.progress import is_ending
from optimus_service.insight.jobs.reasons import any_of, gives_more, keeps, on_unread
from optimus_service.insight.jobs.why import Explanation, explain
from optimus_service.observe.spec import begins_anew, readable_spec
from optimus_service.observe.standstills import Standstill
from optimus_service.store.records import JobRecord


def explanation_of(case: Case) -> answers.Explanation:
    """Everything that can be said of why the job has what it has."""
    job, decision, words = case.job, case.decision, explain(case.job, case.decision, case.now, case.memberships)
    newer = _newer(case, words)
    marginal, effect = marginal_job(case), last_rescale(case)
    expected = expected_of(case)
    kept = _on_larger_cluster(case, words)
    troubles = [f"The cluster says: {trouble}" for trouble in case.troubles]
    sentences = [
        words.message,
        *_on_a_newer_plan(case, words, newer),
        *quotas_told(words.message, case.quotas),
        *_on_a_change_under_way(case),
        *on_lost_tasks(case),
        *_on_places_held(case),
        *kept,
        *troubles,
        *case.warnings,
        *_on_standstill(case),
        *on_unread(case.job),
        *(_on_gains(case, words, marginal) if not kept else ()),  # more would be of no use to it, as is told
        *on_lost_work(case),
        *on_waiting(case, expected),
        *on_the_end(case, expected),
        *on_what_its_rule_needs(case),
        *on_a_cut_ahead(case),
        *on_the_deadline(case, expected),
        *on_the_last_rescale(case, effect),
        *on_its_history(case),
    ]
    return answers.Explanation(
        job_id=job.id,
        state=job.state.value,
        at=_decided_at(case, words),
        reason=words.reason,
        message=words.message,
        what_would_change_it=_change(case, words, expected),
        # It never trains again: nothing counts but what may keep its tasks from stopping.
        sentences=[words.message, *troubles] if job.is_being_cancelled else sentences,
        allocation=allocation_body(words.allocation),
        previous=allocation_body(words.previous),
        gain=None if decision is None else finite(decision.gain),
        next_gain=_next_gain(case, words),
        marginal=marginal,
        confidence=None if decision is None else finite(decision.forecast.confidence),
        expected=expected,
        last_rescale=effect,
        troubles=list(case.troubles),
    )


def _decided_at(case: Case, words: Explanation) -> datetime | None:
    """When that was decided: by the latest round, or by its owner since; None: nothing of the kind is known, as that of
    a job which is cancelled or to be retried since."""
    job, decision, paused_at = case.job, case.decision, case.job.owner_paused_at
    if words.reason == Reason.PAUSED_BY_OWNER and paused_at is not None:
        rounds = [decision.at] if decision is not None and decision.reason == Reason.PAUSED_BY_OWNER else []
        return moment(max([paused_at, *rounds]))
    if decision is None or not (job.state.is_final or words.reason == decision.reason):
        return None
    return moment(decision.at)


_HAS_ENOUGH = frozenset({Reason.NO_FURTHER_GAIN, Reason.UNCHANGED})
"""Reasons of jobs to which more would be of little use."""


def _newer(case: Case, words: Explanation) -> Decision | None:
    """What would be decided now of a job that had enough at the last round, or lacked room, where that is no longer why
    it has what it has. What would give it more is tried with what is measured now."""
    now, kinds = case.decided_now, (_HAS_ENOUGH, LACKING_CAPACITY)
    said = next((kind for kind in kinds if words.reason in kind), None)
    if now is None or said is None or case.loses_to is not None or now.allocation.is_empty:
        return None
    return None if now.reason in said | NOT_COMPETING else now


def _on_a_newer_plan(case: Case, words: Explanation, newer: Decision | None) -> list[str]:
    """Why it may get more after all, no more with more room, or less."""
    now = case.decided_now
    if case.loses_to is not None and not case.loses_to.is_empty and now is not None:
        return [f"By what is known since then, it {now.message[0].lower()}{now.message[1:]}"]
    if newer is None:
        return []
    has, gets = (size(allocation_body(each)) for each in (words.allocation, newer.allocation))
    if has != gets:
        return [f"By what is known since then, the next round would give it {gets}."]
    return [f"By what is known since then, it {newer.message[0].lower()}{newer.message[1:]}"]


def _on_larger_cluster(case: Case, words: Explanation) -> list[str]:
    """Why the room is not all that it lacks."""
    kept = case.kept_on_larger_cluster
    if kept is None or words.reason not in LACKING_CAPACITY or words.allocation.is_empty or _makes_no_step(case):
        return []
    return [f"With more room, too, it {kept[0].lower()}{kept[1:]}"]


def _on_a_change_under_way(case: Case) -> list[str]:
    """What it trains with while what was decided is still to come."""
    job, had = case.job, size_before(case)
    if not is_changing(job):
        return []
    has, gets = (size(allocation_body(each)) for each in (job.running, job.wanted))
    if had is None or size(had) == has:
        return [f"It trains with {has} as yet: the change to {gets} is under way."]
    if size(had) == gets:
        return [f"It trains with {has} until new tasks take part, with which it has {gets} again."]
    change = f"The change from {size(had)} to {gets}"
    return [f"{change} is under way: until its new tasks take part, it trains with {has}."]


def _on_places_held(case: Case) -> list[str]:
    """Whose tasks, that are still being stopped, may hold the places of those that it has been given."""
    if not case.job.is_starting:
        return []
    return until_places_are_left([case.others[job_id] for job_id in case.held_by if job_id in case.others])


def _on_standstill(case: Case) -> list[str]:
    """Why it makes no step, and what its owner can do."""
    job, found = case.job, case.still.get(case.job.id)
    if found is None:
        return []
    said = f"{found.words[0].upper()}{found.words[1:]}."
    if not found.is_stalled or job.is_tracked or case.awaits_answer:
        return [said]
    return [said, if_its_code_hangs(job, found)]


def if_its_code_hangs(job: JobRecord, found: Standstill) -> str:
    """Until when a job that stands still so is waited for, and what its owner can do."""
    seconds, again = job.asked.hang_seconds, "" if found.is_silent else " again"
    after = "60 s or more (`--hang-seconds` of a submission sets another time)" if seconds is None else f"{seconds:g} s"
    replaced = f"replaced after {after}"
    if seconds is not None and job.asked.command is not None:
        least = max(seconds, _SCRIPT_LEAST_SECONDS)
        after = f"{least:g} to {least + _SCRIPT_LATE_SECONDS:g} s (later on a busy machine)"
        replaced = f"ended after {after}, and another started in its place"
    return (
        f"If its code hangs{again}, the worker is {replaced}; `optimus logs {job.id}` shows what it "
        f"printed, and `optimus cancel {job.id}` ends it."
    )


_SCRIPT_LEAST_SECONDS = 10.0
"""Processes of a script that have done nothing for less are not told of."""
_SCRIPT_LATE_SECONDS = 12.0
"""They are looked at every 5 s: that they hang, and that their patience is over, shows as much later at most. To tell
where they are takes them a second, and to tell the service that they ended about another."""


def _is_stalled(case: Case) -> bool:
    """Whether nothing tells that it goes on: no further task makes it faster then."""
    found = case.still.get(case.job.id)
    return found is not None and found.is_stalled


def _makes_no_step(case: Case) -> bool:
    return _is_stalled(case) or is_ending(case.job, case.still)


def marginal_job(case: Case) -> answers.Marginal | None:
    """Of the other active jobs, by what holds of each: who was granted a task with the least gain. None: nobody was."""
    if case.decision is None or case.job.state.is_final or case.job.is_being_cancelled:
        return None
    granted = (
        (each.gain, each.job_id)
        for each in case.decisions.values()
        if each.job_id != case.job.id and each.gain is not None
    )
    gain, job_id = min(granted, default=(None, None))
    if gain is None or job_id is None:
        return None
    name = case.others[job_id].name if job_id in case.others else job_id
    return answers.Marginal(job_id=job_id, name=name, gain=gain)


def _next_gain(case: Case, words: Explanation) -> float | None:
    """Of one more task, by what is known now; None: not known, not any more, or of no use, as the job makes no step."""
    if case.decision is None or case.loses_to is not None or _makes_no_step(case):
        return None
    now = case.decided_now
    if now is None:
        return finite(case.decision.next_gain)
    return finite(now.next_gain) if now.allocation == words.allocation else None


def _on_gains(case: Case, words: Explanation, marginal: answers.Marginal | None) -> list[str]:
    next_gain, now = _next_gain(case, words), case.decided_now
    if case.job.state.is_final or next_gain is None or words.allocation.is_empty:
        return []
    spec, reason = readable_spec(case.job), words.reason if now is None else now.reason
    most = words.allocation if spec is None else Allocation(spec.worker.maximum, spec.server.maximum)
    one_more = next_task(words.allocation, most)
    if next_gain <= 0:
        return [f"One more {one_more} would not make it faster by enough to be worth a task."]
    if reason in _HAS_ENOUGH:
        return [f"One more {one_more} would make it a little faster: too little to change its size for."]
    if marginal is None:
        others = case.others.keys() - {case.job.id}
        alone = "; no other job was given more than its smallest size" if others else ""
        return [f"One more {one_more} would make it faster{alone}."]
    last = f"last task that the round granted, which went to {marginal.name} ({marginal.job_id})"
    times = "more than" if marginal.gain <= 0 else f"{next_gain / marginal.gain:.2g} times as much as"
    return [f"Its next task would gain {times} the {last}."]


def _change(case: Case, words: Explanation, expected: answers.Expected) -> str:
    """What gives it more: only what was tried, where that was possible."""
    if words.reason == Reason.WAITING_FOR_RETRY and begins_anew(case.job):
        again = f"cancel it, and run it again: `optimus retry {case.job.id}`"
        return f"The end of the wait: mend what failed before that. Or {again}."
    if case.job.state.is_final or case.decision is None or words.reason in NOT_COMPETING:
        return words.what_would_change_it
    if is_ending(case.job, case.still) and case.loses_to is None:
        return "Nothing: it has made all steps that it announced, and more would not make its end come sooner."
    if case.gives_more is None:
        return words.what_would_change_it
    behind = _behind(case, words)
    if case.loses_to is not None:
        return keeps(case.gives_more, case.loses_to, behind)
    if _is_stalled(case) and not words.allocation.is_empty:
        hangs = not case.still[case.job.id].is_silent
        cause = "what makes its workers hang is mended" if hangs else "what keeps it from making steps is mended"
        return f"Nothing before {cause}: `optimus logs {case.job.id}` shows what it printed."
    reason = words.reason
    if reason == Reason.LEARNING_SPEED and _has_all(case.job, words):
        reason = Reason.AT_MAXIMUM  # there is nothing to learn for
    if reason == Reason.LEARNING_SPEED and not case.gives_more and not _gets_more(case, words):
        return "Whether it grows is decided when its speed at this size is measured: nothing that was tried helps now."
    mend = "What keeps its tasks from running has to be mended first. " if case.troubles else ""
    loser = frees_room(case)
    if loser is not None and NEXT_ROUND not in case.gives_more:
        goes = "start" if case.job.started_at is None else "go on"
        nothing = f"Nothing has to: it is expected to {goes}{by_what(case, expected)}."
        if not case.gives_more:
            return f"{mend}{nothing}"
        return f"{mend}{nothing} As things are now, it would {goes} with {any_of(case.gives_more)}."
    if not case.gives_more and case.decision.forecast.steps_per_second is None and _is_kept_by_limits(case.job, words):
        # With larger ones, too, it would be measured first, and there is nothing to foresee by what it would get then.
        measured = "its speed at this size is measured: nothing that was tried helps now"
        return f"{mend}Whether larger limits would give it more can be said when {measured}."
    if _gets_more(case, words) and case.decided_now is not None:
        itself = f"As things are now, the next round gives it {size(allocation_body(case.decided_now.allocation))}."
        still = f" It would get still more with {any_of(case.gives_more)}." if case.gives_more else ""
        return f"{mend}{itself}{still}"
    more = gives_more(case.gives_more, words.allocation.is_empty, case.job.started_at is not None, behind)
    queued = "" if case.gives_more else _of_its_priority(case, words, behind)
    return f"{mend}{_by_itself(case, words)}{more}{queued}{_of_its_script(case, reason)}"


def _of_its_priority(case: Case, words: Explanation, behind: Behind | None) -> str:
    """Where to ask what a higher priority does in the queue: a look ahead tells, and takes longer than an explanation
    may. Not where that cannot say when it starts, either."""
    if behind is None or not words.allocation.is_empty or behind.waiting == 0:
        return ""
    job = case.job
    if all(each.job.id != job.id or each.start is None for each in case.queue):
        return ""
    raised = f"optimus set {job.id} --priority {2.0 * job.asked.priority:g} --dry-run"
    return f" What a higher priority would do is told by `{raised}`."


def _behind(case: Case, words: Explanation) -> Behind | None:
    """Whom it comes after. Of those that wait as many as everybody is shown before it, where its start is told, and no
    number where more would start before it now (`sooner_than_shown`)."""
    behind, mine = case.behind, next((each for each in case.queue if each.job.id == case.job.id), None)
    is_shown = mine is not None and mine.start is not None and words.reason == Reason.WAITING_FOR_RESOURCES
    if behind is None or mine is None or not is_shown or behind.with_tasks is None:
        return behind
    return replace(behind, waiting=None if sooner_than_shown(case, mine) else mine.position - 1)


def _gets_more(case: Case, words: Explanation) -> bool:
    """Whether the next round gives a job that trains more, without a change."""
    now = case.decided_now
    return now is not None and not words.allocation.is_empty and is_more(now.allocation, words.allocation)


def _by_itself(case: Case, words: Explanation) -> str:
    """That its size may change without any of what was tried."""
    if words.allocation.is_empty or _has_all(case.job, words) or MEASUREMENT in (case.gives_more or ()):
        return ""
    reasons = {words.reason, None if case.decided_now is None else case.decided_now.reason}
    if Reason.LEARNING_SPEED in reasons:
        return "Whether it grows by itself is decided when its speed at this size is measured. "
    if reasons & _GROWS_WITH_KNOWLEDGE:
        return "Its size may change by itself as more is known of its speed and its end. "
    return ""


_GROWS_WITH_KNOWLEDGE = frozenset({Reason.NOT_WORTH_RESCALING, Reason.UNCHANGED})


def _has_all(job: JobRecord, words: Explanation) -> bool:
    """Whether it has all that its owner allows."""
    spec, size = readable_spec(job), words.allocation
    return spec is not None and (size.workers, size.servers) == (spec.worker.maximum, spec.server.maximum)


def _is_kept_by_limits(job: JobRecord, words: Explanation) -> bool:
    """Whether it has all that its owner allows, and might have more."""
    spec = readable_spec(job)
    return spec is not None and spec.may_grow and not spec.tracked and _has_all(job, words)


def _of_its_script(case: Case, reason: str | None) -> str:
    """What would let a script have more workers, which no round can try: it is a matter of the script."""
    job = case.job
    spec, command = readable_spec(job), job.asked.command
    if reason != Reason.AT_MAXIMUM or spec is None or not command or spec.tracked or spec.may_grow:
        return ""
    if (job.profile or {}).get("fixed_workers") is not None:
        return (
            " It counts its steps by its number of processes, so its size stays: submitted again so that its steps are "
            "the same at every size, it may have more workers (docs/script-sizes.md)."
        )
    resumes = " Submitted with `--resumes`, which says that it goes on from its checkpoint"
    began_anew = (job.profile or {}).get("resumes") is False
    anew = " It began anew when it was started again: if that was before its first checkpoint,"
    if began_anew:
        resumes = f"{anew} submitted with `--resumes`"
    if spec.size_stays:
        several = "" if is_distributed(command) else " if it trains with several processes (by RANK and WORLD_SIZE)"
        return f"{resumes}, its size may change{several}."
    if spec.worker.maximum == 1 and not case.may_have_two:
        return ""
    if spec.worker.maximum == 1 and not is_distributed(command):
        several = " Its command starts one process. If it trains with several (by RANK and WORLD_SIZE),"
        if not begins_anew(job):
            return f"{several} a larger `workers.max` lets it have more workers."
        two = f"{several} submitted with `--workers-min 2 --workers-max 2` it has two workers"
        if began_anew:
            return f"{two}.{anew} with `--resumes` and a larger `workers.max` it may have more."
        return (
            f"{two}, and with `--resumes`, which says that it goes on from its checkpoint, and a larger `workers.max` "
            "it may have more."
        )
    return f"{resumes}, and with a larger `workers.max`, it may have more workers."
