"""Step 5 of a round: every job's decision, with a reason and a sentence that its owner understands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import add, attrgetter, itemgetter

from optimus_models.rescale import is_prior
from optimus_scheduler.allocate.policy import OTHERS_GIVE, Grant
from optimus_scheduler.forecast.outlook import Outlook
from optimus_scheduler.model import NOTHING, Allocation, Decision, Reason, Role
from optimus_scheduler.model.format import (
    IS_BEING_STOPPED,
    ITS_OWNER,
    QUOTAS,
    instant_words,
    retry_words,
    size_words,
    time_words,
)
from optimus_scheduler.place.place import Placed, Placements, TaskSlot, Unplaced
from optimus_scheduler.quota_words import IN_ITS_QUOTA
from optimus_scheduler.reconcile import Want

GOES_FIRST = "It has waited so long that it goes first."
_WAITS_ANYWAY = "Without its limit of workers, too, it would wait for room now."
BETTER_USED = "other jobs make better use of the room"
"""In the words about a job that would have room beside what others need at least."""


def by_urgency(growing: Iterable[tuple[Outlook, Grant]]) -> list[tuple[Outlook, Grant]]:
    """Jobs that get more in a round: those first that get it by a claim; others have only what claims leave."""
    return sorted(growing, key=lambda each: (not each[1].is_claimed, not _for_deadline(*each), each[0].id))


def paused_by(outlook: Outlook, growing: Sequence[tuple[Outlook, Grant]], policy: str) -> str | None:
    """Who has a job pause for want of room, in words; None where no other job gets more in this round.

    `growing`: as `by_urgency` gives them. Jobs of other projects are not named: whoever reads it may not know of them.
    """
    if not growing:
        return None
    first = growing[0][0]
    name = f"job {first.id}" if first.job.spec.project == outlook.job.spec.project else "a job of another project"
    claiming = sum(_for_deadline(*each) for each in growing)
    if claiming > 1:
        return f"{name} and others, which have deadlines"
    if claiming:
        return f"{name}, which has a deadline"
    return f"the policy {policy}, for {name}{' and others' if len(growing) > 1 else ''}"


def with_move(grant: Grant, moved: Outlook, waiting: Outlook) -> Grant:
    """The grant of a job that moves so that another one can start. Jobs of other projects are not named."""
    name = f"job {waiting.id}" if waiting.job.spec.project == moved.job.spec.project else "a job that waits"
    note = f"It moves to other nodes, so that {name} has room."
    return grant._replace(note=f"{grant.note} {note}" if grant.note else note)


def with_fewer_nodes(grant: Grant, before: int, nodes: int, exchange_part: float) -> Grant:
    """The grant of a job that moves from `before` nodes to `nodes`, as so much of each step goes into its exchange."""
    note = (
        f"Its workers move together, from {before} nodes to {nodes}: {exchange_part:.0%} of each step "
        "goes into what they exchange."
    )
    return grant._replace(note=f"{grant.note} {note}" if grant.note else note)


def _for_deadline(outlook: Outlook, grant: Grant) -> bool:
    """Whether its deadline is why it goes first: one that is given up claims nothing."""
    return grant.is_claimed and outlook.job.spec.deadline_at is not None


def decide(
    outlooks: Iterable[Outlook],
    grants: Mapping[str, Grant],
    placements: Placements,
    wants: Mapping[str, Want],
    *,
    worded: bool = True,
) -> list[Decision]:
    """One for each of these jobs, in their order. Not `worded`, they have no sentence: to compare sizes in words takes
    most of the time.

    Most jobs tell nothing new and get what they had: their sentence is that of the round before.
    """
    outlooks = list(outlooks)
    if not outlooks:
        return []
    ids, steady = [one.id for one in outlooks], [one.steady for one in outlooks]
    given, wanted = list(map(grants.__getitem__, ids)), list(map(wants.__getitem__, ids))
    placed, beside = list(map(placements.get, ids)), map(_told_beside, [one.job for one in outlooks])
    made_of = map(add, map(add, zip(wanted, placed, repeat(worded), strict=False), map(_told_of, given)), beside)
    known = [each.words for each in steady]
    for at, (asked, before) in enumerate(zip(made_of, known, strict=True)):
        if before is None or before[0] != asked:  # mostly the very same objects
            words = _in_words(outlooks[at], given[at], placed[at], wanted[at], worded=worded)
            known[at] = steady[at].words = asked, words
    sizes, reasons, messages = zip(*[each[1] for each in known if each is not None], strict=True)
    present, forecasts = [one.present for one in outlooks], [one.forecast for one in outlooks]
    gains, next_gains = [each.gain for each in given], [each.next_gain for each in given]
    batches = [each.batch for each in wanted]
    columns = ids, sizes, present, reasons, messages, forecasts, gains, next_gains, batches
    return list(map(_decision, zip(*columns, strict=True)))


_decision: Callable[[Iterable[object]], Decision] = partial(tuple.__new__, Decision)
"""In half the time that `Decision` itself takes: there are thousands."""
_told_of = itemgetter(*(at for at, name in enumerate(Grant._fields) if name not in ("gain", "next_gain")))
"""What sentences tell of a grant: no gain."""
_told_beside = attrgetter("wanted_tasks", "formed", "paused_by", "retry")
"""What they tell of a job that may change while its `Steady` stays."""


def _in_words(
    one: Outlook, grant: Grant, placed: Placed | Unplaced | None, want: Want, *, worded: bool
) -> tuple[Allocation, Reason, str]:
    """What the job gets, why, and in a sentence. A function of what lasts of the outlook (`Steady`), of what
    `_told_of` the grant and `_told_beside` it of the job, and of the others."""
    if placed is not None and (type(placed) is not Placed or placed[0] is not grant[0]):
        grant = _as_placed(one, grant, placed)
    size = grant.allocation
    if size is not one.present and one.has_tasks:
        grant = _as_its_owner_allows(one, grant)
    if not worded:
        return size, grant.reason, ""
    message = _worded(one, grant, placed, want.batch, want.paused_by)
    if size is not one.present and one.has_tasks and (moves := _on_moves(one, size, want.nodes)) is not None:
        message = f"{message} {moves}"
    return size, grant.reason, message


def _worded(outlook: Outlook, grant: Grant, placed: Placed | Unplaced | None, batch: int | None, by: str | None) -> str:
    """`grant`: as placed. `placed` is None when the job was granted nothing, `batch` without an elastic batch.

    `by`: who has it pause, where that is known (`paused_by`). No sentence tells a time that is left: it is stored, and
    would be out of date when it is read.
    """
    if by is not None:
        outlook = outlook._replace(job=replace(outlook.job, paused_by=by))
    message = _MESSAGES[grant.reason](outlook, grant)
    if isinstance(placed, Unplaced):
        message = f"{_stops(outlook)} {placed.reason} ({size_words(outlook.minimum)})."
    if batch is not None and not grant.allocation.is_empty:
        message = f"{message} {_batch(outlook, batch)}"
    if grant.goes_first:
        message = f"{message} {GOES_FIRST}"
    if grant.note is not None:
        message = f"{message} {grant.note}"
    if grant.lacks_room:
        message = f"{message} {_WAITS_ANYWAY}"
    return message


def decide_tracked(outlook: Outlook) -> Decision:
    """The decision for a job that runs outside the cluster: it keeps what it has."""
    return Decision(
        job_id=outlook.id,
        allocation=outlook.present,
        previous=outlook.present,
        reason=Reason.TRACKED,
        message=_MESSAGES[Reason.TRACKED](outlook, Grant(outlook.present, Reason.TRACKED)),
        forecast=outlook.forecast,
    )


def _as_placed(outlook: Outlook, grant: Grant, placed: Placed | Unplaced | None) -> Grant:
    """The grant as the nodes allowed it."""
    if placed is None:
        return grant
    if isinstance(placed, Unplaced):
        return grant._replace(allocation=NOTHING, reason=Reason.NO_FEASIBLE_NODE)
    if placed.allocation is grant.allocation or placed.allocation == grant.allocation:
        return grant
    grows = _tasks(placed.allocation) > _tasks(outlook.present)
    reason = grant.reason if grows else Reason.NO_FEASIBLE_NODE
    return grant._replace(allocation=placed.allocation, ideal=grant.allocation, reason=reason)


def _as_its_owner_allows(outlook: Outlook, grant: Grant) -> Grant:
    """The grant of a job that has tasks. Where it had more than its owner allows by now, that is why it has fewer."""
    if not _is_cut(outlook, grant.allocation) or grant.reason not in _BY_ITSELF:
        return grant
    return grant._replace(reason=Reason.AT_MAXIMUM)


def _is_cut(outlook: Outlook, size: Allocation) -> bool:
    """Whether a job gets as much of what it has as its owner allows by now, which is less."""
    has, most = outlook.present, outlook.maximum
    kept = min(has.workers, most.workers), min(has.servers, most.servers)
    return (size.workers, size.servers) == kept != (has.workers, has.servers)


_BY_ITSELF = frozenset(
    {
        *(Reason.NO_FURTHER_GAIN, Reason.BETTER_USED_ELSEWHERE, Reason.CLUSTER_FULL, Reason.MINIMUM_ELSEWHERE),
        *(Reason.UNCHANGED, Reason.GRANTED_MORE, Reason.LEARNING_SPEED, Reason.NOT_WORTH_RESCALING),
    }
)
"""Reasons why a job has no more than it gets, which are not why it has to give something back."""


def _tasks(size: Allocation) -> int:
    return size.workers + size.servers


# --- sentences -------------------------------------------------------------------------------------------------------


def _granted_more(outlook: Outlook, grant: Grant) -> str:
    if not outlook.has_tasks:
        return (
            f"Goes on with {size_words(grant.allocation)}."
            if outlook.job.step
            else f"Starts with {size_words(grant.allocation)}."
        )
    return f"{_change(outlook, grant)}: {_effect(outlook, grant.allocation)}."


def _unchanged(_: Outlook, grant: Grant) -> str:
    # Its own limits, or those of its owner and project, which it is not told by here.
    return f"Keeps {size_words(grant.allocation)}: no other size within its limits is clearly better for it now."


def _better_used_elsewhere(outlook: Outlook, grant: Grant) -> str:
    if grant.allocation == outlook.present:
        room = f"the room that {_more(grant)} would need"
        return f"Keeps {size_words(grant.allocation)}: other jobs make better use of {room}."
    return f"{_change(outlook, grant)}, as other jobs need the room more: {_effect(outlook, grant.allocation)}."


def _cluster_full(outlook: Outlook, grant: Grant) -> str:
    if grant.allocation == outlook.present:
        kept = size_words(grant.allocation)
        return f"Keeps {kept}: the cluster has no room for {_more(grant)}, even without other jobs."
    return f"{_change(outlook, grant)}: the cluster has less room than before; {_effect(outlook, grant.allocation)}."


def _minimum_elsewhere(outlook: Outlook, grant: Grant) -> str:
    beside = "beside what other jobs keep at least"  # their minima, claims, and all of those that are being finished
    if grant.allocation == outlook.present:
        return f"Keeps {size_words(grant.allocation)}: there is no room for {_more(grant)} {beside}."
    why = f"there is no room for {size_words(outlook.present)} {beside}"
    return f"{_change(outlook, grant)}, as {why}: {_effect(outlook, grant.allocation)}."


def _at_quota(outlook: Outlook, grant: Grant) -> str:
    project = outlook.job.spec.project
    if grant.allocation == outlook.present:
        lacks = f"{_more(grant)} would be more than project {project} may have"
        return f"Keeps {size_words(grant.allocation)}: {lacks}."
    return f"{_change(outlook, grant)}: project {project} may have no more; {_effect(outlook, grant.allocation)}."


def _at_worker_limit(outlook: Outlook, grant: Grant) -> str:
    """The limit's own sentence follows."""
    if grant.allocation == outlook.present:
        return f"Keeps {size_words(grant.allocation)}: a limit leaves it no more workers."
    why = "a limit leaves it no more workers"
    if not outlook.has_tasks:
        return f"{'Goes on' if outlook.job.step else 'Starts'} with {size_words(grant.allocation)}: {why}."
    return f"{_change(outlook, grant)}: {why}; {_effect(outlook, grant.allocation)}."


def _more(grant: Grant) -> str:
    """The size that it would have next."""
    return "more" if grant.ideal is None else size_words(grant.ideal)


def _no_further_gain(outlook: Outlook, grant: Grant) -> str:
    size, most = grant.allocation, outlook.maximum
    more = f"more {next_task(size, most)}s"
    limit = ""
    if is_at_a_limit(size, most):
        limit = f", and its owner allows no more {'workers' if size.workers >= most.workers else 'servers'}"
    if size != outlook.present:
        return f"{_change(outlook, grant)}: {more} are of little use to it{limit}; {_effect(outlook, size)}."
    return f"Keeps {size_words(size)}: {more} would make it hardly faster{limit}."


def _at_maximum(outlook: Outlook, grant: Grant) -> str:
    if outlook.job.spec.size_stays:
        why = "it is not known to go on from checkpoints at another size"
        return f"Has {size_words(grant.allocation)}, and its size stays: {why}."
    if _is_cut(outlook, grant.allocation):
        allowed = f"its owner allows no more than {size_words(outlook.maximum)}"
        return f"{_change(outlook, grant)}: {allowed}; {_effect(outlook, grant.allocation)}."
    return f"Gets all that its owner allows: {size_words(grant.allocation)}."


def _not_worth_rescaling(outlook: Outlook, grant: Grant) -> str:
    ideal = grant.ideal or grant.allocation
    has = outlook.present
    assumed = (
        " (assumed: no job that runs, nor one like them that succeeded, has measured one)"
        if is_prior(outlook.stop_seconds)
        else ""
    )
    joins = outlook.joining_seconds > 0 and (ideal.workers > has.workers or ideal.servers > has.servers)
    # As it is seen: from their start until they train, the stop included.
    takes = time_words(outlook.joining_seconds + outlook.stop_seconds)
    wait = f"new tasks take about {takes} to join, and within that " if joins else ""
    too_dear = (
        "and other jobs would be slower: together that is too much for what it would save, or for how sure that is"
        if OTHERS_GIVE in (grant.note or "")
        else "too long for what it would save by its end or for how sure that is"
    )
    return (
        f"Keeps {size_words(grant.allocation)}: {size_words(ideal)} would be {_times_as_fast(outlook, ideal, has)}, "
        f"but {wait}the change is predicted to stop training for about {time_words(outlook.stop_seconds)}{assumed}, "
        f"{too_dear}."
    )


def _learning_speed(outlook: Outlook, grant: Grant) -> str:
    if not outlook.has_tasks:
        starts = f"{'Goes on' if outlook.job.step else 'Starts'} with {size_words(grant.allocation)}"
        later = "; whether it grows is decided once its speed is measured"
        return f"{starts}{'' if grant.allocation == outlook.maximum else later}."
    if grant.allocation != outlook.present:
        grows = _tasks(grant.allocation) > _tasks(_before(outlook)) > 0
        learns = " to learn how its speed grows" if grows and not _was_measured(outlook, grant.allocation) else ""
        return f"{_change(outlook, grant)}{learns}: {_effect(outlook, grant.allocation)}."
    if _was_measured(outlook, grant.allocation):
        return (
            f"Keeps {size_words(grant.allocation)} for now: after each decision to change its size, also one that was "
            "taken back, its speed is measured anew before the next one."
        )
    return f"Keeps {size_words(grant.allocation)} until its speed at this size is measured."


def _was_measured(outlook: Outlook, size: Allocation) -> bool:
    """Whether the job trained with this size before it was granted what it has."""
    since = outlook.job.allocated_at
    before = (each for each in outlook.job.speed_samples if since is None or each.at < since)
    return any((each.workers, each.servers) == (size.workers, size.servers) for each in before)


def _waiting(outlook: Outlook, grant: Grant) -> str:
    least = size_words(outlook.minimum)
    if grant.grown:
        what = _stops(outlook, outlook.job.paused_by) if outlook.has_tasks else _waits(outlook)
        return f"{what} {BETTER_USED} that {least} would need."
    if outlook.has_tasks:
        paused = _stops(outlook, outlook.job.paused_by)
        return f"{paused} the cluster has no room left for {least} beside jobs that train or go first."
    return f"{_waits(outlook)} there is no room for {least} beside jobs that train or go first."


def _stops(outlook: Outlook, by: str | None = None) -> str:
    """What a sentence begins with on a job that gets nothing, and may have tasks until now. `by`: who takes them.

    One that has not trained does not pause: it waits on.
    """
    if not outlook.has_tasks or (outlook.job.started_at is None and by is None):
        return "Waits:"
    if outlook.job.started_at is None:
        return f"Its tasks are taken by {by}, before it began:"
    return "Paused:" if by is None else f"Paused by {by}:"


def _waits(outlook: Outlook) -> str:
    """What a sentence on a job without tasks begins with. Whoever had it pause may have nothing to do with why it still
    waits, and may have ended: why that one went first is told without a time."""
    by, at = outlook.job.paused_by, outlook.job.allocated_at
    if by is None:
        return "Waits:"
    was = by.replace("which has a deadline", "for its deadline").replace("which have deadlines", "for their deadlines")
    when = "" if at is None else f"at {instant_words(at)} "
    if outlook.job.started_at is None:
        return f"Its tasks were taken {when}by {was}, before it began. Now"
    return f"Paused {when}by {was}. Now"


def _no_feasible_node(outlook: Outlook, grant: Grant) -> str:
    if grant.ideal is not None and not grant.allocation.is_empty:
        lacks = f"no node has room for the tasks of {size_words(grant.ideal)}"
        if grant.allocation == outlook.present:
            return f"Keeps {size_words(grant.allocation)}: {lacks}."
        return f"{_change(outlook, grant)}: {lacks}."
    return f"{_stops(outlook)} no node that may be used can host {size_words(outlook.minimum)}, even when it is empty."


def _waiting_for_quota(outlook: Outlook, grant: Grant) -> str:
    least, by, project = size_words(outlook.minimum), outlook.job.paused_by, outlook.job.spec.project
    is_told = by is None or by == QUOTAS  # the sentence itself names these
    what = _stops(outlook, None if is_told else by) if outlook.has_tasks else _waits(outlook)
    if grant.grown:
        others = f"job{'s' * (len(grant.grown) > 1)} {' and '.join(grant.grown[:_NAMED])}"
        others += f" and {more} more" if (more := len(grant.grown) - _NAMED) > 0 else ""
        uses = "make" if len(grant.grown) > 1 else "makes"
        return f"{what} {others} of project {project} {uses} {IN_ITS_QUOTA} that {least} would need."
    return f"{what} quotas leave no room{' now' * (not what.endswith('Now'))} for {least} of project {project}."


_NAMED = 3
"""Jobs of its project that are named; of more the number is told."""


def _waiting_for_worker_limit(outlook: Outlook, grant: Grant) -> str:
    """The limit's own sentence follows. Other jobs may be of projects that its reader may not know."""
    beside = " beside other jobs, some of which have more than they need at least" if grant.grown else ""
    return f"Waits: a limit leaves no room now for {size_words(outlook.minimum)}{beside}."


def _as_constrained(outlook: Outlook, grant: Grant) -> str:
    """The deadline's or budget's own sentence follows."""
    if not outlook.has_tasks or grant.allocation != outlook.present:
        return _granted_more(outlook, grant)
    return f"Keeps {size_words(grant.allocation)}."


def _waiting_for_retry(outlook: Outlook, _grant: Grant) -> str:
    retry = outlook.job.retry
    assert retry is not None, "the reason says so"
    return retry_words(retry.seconds, retry.number, retry.most, retry.error)


def _paused_by_owner(outlook: Outlook, _grant: Grant) -> str:
    by = outlook.job.paused_by or ITS_OWNER
    what = "its tasks save what they can and leave" if outlook.has_tasks else "it gets nothing until it is resumed"
    return f"Paused by {by}: {what}."


def _converged(outlook: Outlook, _grant: Grant) -> str:
    rule = outlook.forecast.rule
    return f"Its convergence rule holds ({rule}) at step {outlook.job.step}: it is being finished."


def _limit_reached(outlook: Outlook, _grant: Grant) -> str:
    rule = outlook.forecast.rule
    return f"It has reached its limit ({rule}) at step {outlook.job.step}: it is being finished."


def _cancelling(_outlook: Outlook, _grant: Grant) -> str:
    return IS_BEING_STOPPED


def _tracked(_outlook: Outlook, _grant: Grant) -> str:
    return "Runs outside the cluster: it is watched, not scheduled."


_MESSAGES: dict[Reason, Callable[[Outlook, Grant], str]] = {
    Reason.GRANTED_MORE: _granted_more,
    Reason.UNCHANGED: _unchanged,
    Reason.BETTER_USED_ELSEWHERE: _better_used_elsewhere,
    Reason.CLUSTER_FULL: _cluster_full,
    Reason.MINIMUM_ELSEWHERE: _minimum_elsewhere,
    Reason.AT_QUOTA: _at_quota,
    Reason.AT_WORKER_LIMIT: _at_worker_limit,
    Reason.NO_FURTHER_GAIN: _no_further_gain,
    Reason.AT_MAXIMUM: _at_maximum,
    Reason.NOT_WORTH_RESCALING: _not_worth_rescaling,
    Reason.LEARNING_SPEED: _learning_speed,
    Reason.WAITING_FOR_RESOURCES: _waiting,
    Reason.WAITING_FOR_QUOTA: _waiting_for_quota,
    Reason.WAITING_FOR_WORKER_LIMIT: _waiting_for_worker_limit,
    Reason.MEETING_DEADLINE: _as_constrained,
    Reason.DEADLINE_CANNOT_BE_MET: _as_constrained,
    Reason.WITHIN_BUDGET: _as_constrained,
    Reason.NO_FEASIBLE_NODE: _no_feasible_node,
    Reason.WAITING_FOR_RETRY: _waiting_for_retry,
    Reason.PAUSED_BY_OWNER: _paused_by_owner,
    Reason.CONVERGED: _converged,
    Reason.LIMIT_REACHED: _limit_reached,
    Reason.CANCELLING: _cancelling,
    Reason.TRACKED: _tracked,
}


def next_task(size: Allocation, most: Allocation) -> str:
    """What a job of this size may have one more of, if it may have `most`: a worker, a server, or a task of either."""
    if not is_at_a_limit(size, most):
        return "task"
    return "server" if size.workers >= most.workers else "worker"


def is_at_a_limit(size: Allocation, most: Allocation) -> bool:
    """Whether a job that may have `most` may have more of one role, but no more of the other, which it has, too."""
    at_most = size.workers >= most.workers, size.servers >= most.servers
    return most.servers > 0 and any(at_most) and not all(at_most)


# --- tasks that move -------------------------------------------------------------------------------------------------


def _on_moves(outlook: Outlook, size: Allocation, nodes: Mapping[TaskSlot, str]) -> str | None:
    """Which tasks of a job that changes its size go to other nodes, and what it trains with until they take part; None:
    those that it keeps stay where they are, or it does not train yet.

    Its coordinator lets those that leave go at once, where others of their role stay.
    """
    has, before = outlook.present, {(key.role, key.rank): node for key, node in outlook.job.wanted_tasks}
    moved = [slot for slot, node in nodes.items() if before.get(slot, node) != node]
    if not moved or _before(outlook).is_empty or has.gpu_type != size.gpu_type:
        return None
    stay = [role for (role, _), node in set(nodes.items()) & set(before.items())]
    counts = [(role, sum(slot[0] is role for slot in moved)) for role in (Role.WORKER, Role.SERVER)]
    who = [_of_its(count, has.workers if role is Role.WORKER else has.servers, role) for role, count in counts if count]
    to = sorted({nodes[slot] for slot in moved})
    where = " and ".join(to) if len(to) <= _NAMED_NODES else "other nodes"
    told = f"Its tasks are placed anew: {' and '.join(who)} move{'s' * (len(moved) == 1)} to {where}"
    meanwhile = Allocation(stay.count(Role.WORKER) or has.workers, stay.count(Role.SERVER) or has.servers)
    is_less = meanwhile.workers < min(has.workers, size.workers) or meanwhile.servers < min(has.servers, size.servers)
    if not is_less or _pair(_before(outlook)) != _pair(has):  # else not all that stay take part yet
        return f"{told}."
    until = "it takes part" if len(moved) == 1 else "they take part"
    return f"{told}, and until {until} it trains with {size_words(meanwhile)}."


_NAMED_NODES = 2


def _pair(size: Allocation) -> tuple[int, int]:
    return size.workers, size.servers


def _of_its(count: int, among: int, role: Role) -> str:
    """`its server`, `all its workers`, `2 of its workers`."""
    if count < among:
        return f"{count} of its {role.value}s"
    return f"its {role.value}" if among == 1 else f"all its {role.value}s"


# --- parts of sentences ----------------------------------------------------------------------------------------------


def _change(outlook: Outlook, grant: Grant) -> str:
    present, size = _before(outlook), grant.allocation
    if present.is_empty:
        return f"{'Goes on' if outlook.job.step else 'Starts'} with {size_words(size)}"
    if present == size:
        return f"Keeps {size_words(size)}, and the change to {size_words(outlook.present)} is taken back"
    if present.gpu_type and present.gpu_type != size.gpu_type:
        return f"Moves from {size_words(present)} on {present.gpu_type} to {size_words(size)} on {size.gpu_type}"
    before, after = _tasks(present), _tasks(size)
    verb = "Grows" if after > before else "Shrinks" if after < before else "Changes"
    return f"{verb} from {size_words(present)} to {size_words(size)}"


def _effect(outlook: Outlook, size: Allocation) -> str:
    """The predicted speed. Not the time left: the sentence is stored, and that would be out of date when it is read."""
    if outlook.speeds.model.n_points == 0:
        return "its speed is not known yet"
    present = _before(outlook)
    if present.is_empty:
        given = outlook.present
        return f"predicted {_times_as_fast(outlook, size, given)} as with {size_words(given)}"
    if present == size:
        return "its speed stays as it is"
    return f"predicted {_times_as_fast(outlook, size, present)}"


_CLEAR = 1.1
"""A predicted ratio whose bounds are at most such a factor apart is told without them."""


def _times_as_fast(outlook: Outlook, size: Allocation, other: Allocation) -> str:
    """`1.74 times as fast (1.4 to 2.1 with 80 % probability)`."""
    ratio = outlook.speeds.compared(size, other)
    told = f"{ratio.mean:.2f} times as fast"
    doubts = [] if ratio.high <= _CLEAR * ratio.low else [f"{ratio.low:.2g} to {ratio.high:.2g} with 80 % probability"]
    # Measurements of few seconds share what slowed the machine down then, which no interval shows.
    doubts += ["its speeds are still being learned"] if outlook.learning else []
    return f"{told} ({'; '.join(doubts)})" if doubts else told


def _before(outlook: Outlook) -> Allocation:
    """The size that its tasks have formed: what it was given since may be on its way, or be taken back before."""
    formed = outlook.job.formed
    if formed is None:
        return outlook.present
    return formed if formed.is_empty or formed.gpu_type else formed._replace(gpu_type=outlook.present.gpu_type)


def _batch(outlook: Outlook, batch: int) -> str:
    before = outlook.job.batch
    if before is None or before == batch:
        return f"It trains with batches of {batch} examples."
    return f"Its batch goes from {before} to {batch} examples."
