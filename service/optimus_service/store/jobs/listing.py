"""Statements that list jobs: a page of those that meet some conditions, and all that were submitted in a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import (
    ColumnElement,
    SelectBase,
    SQLColumnExpression,
    and_,
    case,
    exists,
    func,
    or_,
    select,
    tuple_,
    union,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from optimus_scheduler.model import Directive, JobState
from optimus_service.store.database.dialects import is_postgresql
from optimus_service.store.database.pages import decode_cursor, encode_cursor, make_page
from optimus_service.store.database.tables import JobHistoryRow, JobLabelRow, JobRow, SampleBatchRow, UserRow
from optimus_service.store.jobs.rows import ACTIVE_STATES, in_projects, record
from optimus_service.store.records import BEFORE_TASKS, JobRecord, NameMatch, Page, SubmittedJob

_LAST_CHARACTER = "\U0010ffff"
Place = tuple[SQLColumnExpression[float], SQLColumnExpression[str]]
"""What jobs are listed by: when they were submitted, and their ids."""
_COUNTED_LABELS = 1000
"""Jobs of a label at most that are counted to see which of several labels is the rarest."""
LOOKED_THROUGH = 20_000
"""Jobs that one page of a search for a part is made of: that takes some 30 ms by names, 90 ms by all
that they are found by."""


def page(
    session: Session,
    states: Collection[JobState] | None,
    project: str | None,
    name_contains: str | None,
    cursor: str | None,
    limit: int,
    name_match: NameMatch,
    labels: Mapping[str, str | None],
    owner: str | None,
    projects: Collection[str] | None,
    *,
    starting: bool,
) -> Page[JobRecord]:
    """See `Jobs.page`."""
    if name_contains is not None and name_match == "one":
        name_contains, name_match = _meant(session, name_contains, projects), "id"
    chosen: list[ColumnElement[bool]] = [*in_projects(projects)]
    if states is not None:
        chosen += _in_states(states, starting=starting)
    if project is not None:
        chosen.append(JobRow.project == project)
    if owner is not None:
        # Not those of an earlier user of that name; where there is no user now, of whoever had it.
        since = select(UserRow.created_at).where(UserRow.name == owner).scalar_subquery()
        chosen += [JobRow.owner == owner, JobRow.created_at >= func.coalesce(since, 0.0)]
    # Of few jobs, found by their name or as active ones, each is asked for its labels; else a label has its own
    # order.
    by_name = name_contains is not None and name_match not in ("part", "any")
    is_few = by_name or (states is not None and all(not state.is_final for state in states))
    label = None if is_few or not labels else _rarest(session, labels)
    place: Place = (JobRow.created_at, JobRow.id)
    if label is not None:
        chosen += [JobRow.id == JobLabelRow.job_id, *_is_label(JobLabelRow, label, labels[label])]
        place = (JobLabelRow.created_at, JobLabelRow.job_id)
    for name in labels.keys() - {label}:
        other = aliased(JobLabelRow)
        chosen.append(exists().where(other.job_id == JobRow.id, *_is_label(other, name, labels[name])))
    if cursor is not None:
        chosen.append(tuple_(*place) < tuple_(*decode_cursor("jobs", cursor, (float, str))))
    if name_contains is None:
        return _newest(session, chosen, limit, place)
    name_contains = name_contains.replace("\0", "\ufffd")
    if not by_name:
        elsewhere = _elsewhere(name_contains) if name_match == "any" else ()
        return _with_part(session, chosen, name_contains, elsewhere, limit, place)
    # In a query of its own: the index of names is read, however few jobs have the name, not all jobs by their
    # age.
    return _newest(session, [*chosen, JobRow.id.in_(_named(session, name_contains, name_match))], limit, place)


def submitted(
    session: Session,
    begin: float,
    end: float,
    project: str | None,
    after: SubmittedJob | None,
    limit: int,
    projects: Collection[str] | None,
) -> list[SubmittedJob]:
    """See `Jobs.submitted`."""
    stored = select(SampleBatchRow.last_id).where(SampleBatchRow.job_id == JobRow.id).exists()
    known = select(JobHistoryRow.last_id).where(JobHistoryRow.job_id == JobRow.id).exists()
    statement = select(JobRow.id, JobRow.created_at, JobRow.state, stored | known)
    statement = statement.where(JobRow.created_at >= begin, JobRow.created_at < end, *in_projects(projects))
    if project is not None:
        statement = statement.where(JobRow.project == project)
    if after is not None:
        statement = statement.where(tuple_(JobRow.created_at, JobRow.id) > tuple_(after.created_at, after.id))
    rows = session.execute(statement.order_by(JobRow.created_at, JobRow.id).limit(limit))
    return [SubmittedJob(job_id, at, JobState(state), has_samples) for job_id, at, state, has_samples in rows]


def _in_states(states: Collection[JobState], *, starting: bool) -> list[ColumnElement[bool]]:
    """`starting`: beside those in these states those of `JobRecord.is_starting`."""
    among = {*states, *(BEFORE_TASKS if starting else ())}
    looked_at = JobRow.state.in_(sorted(state.value for state in among))  # so that the index of states is read
    if among == {*states}:
        return [looked_at]
    has_tasks = or_(JobRow.wanted_workers > 0, JobRow.wanted_servers > 0)
    is_starting = and_(
        JobRow.state.in_([state.value for state in BEFORE_TASKS]), has_tasks, JobRow.directive != Directive.CANCEL.value
    )
    return [looked_at, or_(JobRow.state.in_([state.value for state in states]), is_starting)]


def _is_label(row: type[JobLabelRow], name: str, value: str | None) -> list[ColumnElement[bool]]:
    return [row.name == name, *(() if value is None else (row.value == value,))]


def _rarest(session: Session, labels: Mapping[str, str | None]) -> str:
    """The label that the fewest jobs have."""
    if len(labels) == 1:
        return next(iter(labels))

    def n_jobs(name: str) -> int:
        some = select(JobLabelRow.job_id).where(*_is_label(JobLabelRow, name, labels[name])).limit(_COUNTED_LABELS)
        return session.scalar(select(func.count()).select_from(some.subquery("looked_at"))) or 0

    return min(sorted(labels), key=n_jobs)


def _newest(session: Session, chosen: Sequence[ColumnElement[bool]], limit: int, place: Place) -> Page[JobRecord]:
    statement = select(JobRow, *place).where(*chosen).order_by(*(part.desc() for part in place))
    rows = session.execute(statement.limit(limit + 1)).all()
    return make_page("jobs", rows, limit, lambda row: (float(row[1]), row[2]), lambda row: record(row[0]))


def _elsewhere(part: str) -> list[ColumnElement[bool]]:
    """That something else of a job than its name has this in it."""
    label = JobLabelRow.name + case((JobLabelRow.value == "", ""), else_="=" + JobLabelRow.value)
    of_job = exists().where(JobLabelRow.job_id == JobRow.id, label.icontains(part, autoescape=True))
    columns = (JobRow.id, JobRow.owner, JobRow.project)
    return [*(column.icontains(part, autoescape=True) for column in columns), of_job]


def _with_part(
    session: Session,
    chosen: Sequence[ColumnElement[bool]],
    part: str,
    elsewhere: Sequence[ColumnElement[bool]],
    limit: int,
    place: Place,
) -> Page[JobRecord]:
    """Those with this in their names, or elsewhere, among the newest `LOOKED_THROUGH` of the chosen; the next page goes
    on there."""
    places = select(*place, JobRow.name).where(*chosen).order_by(*(part.desc() for part in place))
    looked_at = places.limit(LOOKED_THROUGH).subquery("looked_at")
    at, id_, name = looked_at.c
    found = [JobRow.id == id_, or_(name.icontains(part, autoescape=True), *elsewhere)]
    page_ = _newest(session, found, limit, (at, id_))
    last = None if page_.next_cursor else session.execute(places.offset(LOOKED_THROUGH - 1).limit(1)).first()
    return page_ if last is None else Page(page_.items, encode_cursor("jobs", (float(last[0]), last[1])))


def _meant(session: Session, text: str, projects: Collection[str] | None) -> str:
    """The id of the job (of these projects) that is meant by an id or a name: of several jobs of that name the newest
    that is active, else the newest of all. The text itself where there is none."""
    text = text.replace("\0", "\ufffd")
    is_active = case((JobRow.state.in_(ACTIVE_STATES), 1), else_=0)
    is_id = case((JobRow.id == text, 1), else_=0)
    by_rule = (
        is_id.desc(),
        is_active.desc(),
        JobRow.created_at.desc(),
        JobRow.id.desc(),
    )
    either: SelectBase = union(_named(session, text, "exact"), _named(session, text, "id"))
    named = select(JobRow.id).where(JobRow.id.in_(either), *in_projects(projects))
    found = session.scalar(named.order_by(*by_rule))
    return text if found is None else found


def _named(session: Session, text: str, match: NameMatch) -> SelectBase:
    """The ids of jobs of this name."""
    ids = select(JobRow.id)
    if match == "id":
        return ids.where(JobRow.id == text)
    if match == "exact":
        return ids.where(JobRow.name == text)
    return union(*(ids.where(_begins(session, column, text)) for column in (JobRow.name, JobRow.id)))


def _begins(session: Session, column: InstrumentedAttribute[str], text: str) -> ColumnElement[bool]:
    """So that an index finds it: SQLite's LIKE, which looks away from case, uses none."""
    if is_postgresql(session):
        return column.startswith(text, autoescape=True)
    return (column >= text) & (column < text + _LAST_CHARACTER)
