"""What happened and what rounds decided: events, rounds, decisions, and what is expected of jobs since."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from optimus_scheduler.model import Allocation
from optimus_service.store.database.pages import DEFAULT_PAGE, check_limit
from optimus_service.store.database.subject import Subject
from optimus_service.store.jobs import awaited, shown_predictions
from optimus_service.store.jobs.rows import locked
from optimus_service.store.records import (
    DecisionRecord,
    Document,
    EventRecord,
    ExpectedTimesRecord,
    Page,
    PredictionRecord,
    PromisedDeadline,
    RoundRecord,
)
from optimus_service.store.rounds import expected_times, history


class Events(Subject):
    """What happened, to jobs and to the cluster."""

    def add(self, job_id: str | None, event_type: str, message: str, data: Document, now: float) -> None:
        """Add to the list of what happened to a job, or (None) to the cluster.

        Raises:
            JobNotFound: there is no such job.
        """
        with self._write() as session:
            if job_id is not None:
                locked(session, job_id)  # events of one job become visible in the order of their ids
            history.add_event(session, job_id, event_type, message, data, now)

    def page(
        self, job_id: str | None = None, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[EventRecord]:
        """What happened to a job (None: to anything), newest first; empty for an unknown job.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        check_limit(limit)
        with self._read() as session:
            return history.events(session, job_id, cursor, limit)

    def latest_types(self, event_types: Collection[str], job_ids: Collection[str]) -> dict[str, str]:
        """Which of these events has happened to each of these jobs last; jobs with none of them are left out."""
        with self._read() as session:
            return history.latest_event_types(session, event_types, job_ids)

    def of_type(self, event_type: str, job_ids: Collection[str]) -> list[EventRecord]:
        """The events of one type that happened to these jobs, oldest first."""
        with self._read() as session:
            return history.events_of_type(session, event_type, job_ids)


class Rounds(Subject):
    """Rounds, their decisions, and what is expected of jobs since."""

    def add(self, record: RoundRecord, decisions: Sequence[DecisionRecord]) -> int:
        """Store a round and its decisions (their `id` and `round_id` are given here).

        Returns:
            The round's id.
        """
        with self._write() as session:
            return history.add_round(session, record, decisions)

    def page(self, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page[RoundRecord]:
        """Rounds, newest first.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        check_limit(limit)
        with self._read() as session:
            return history.rounds(session, cursor, limit)

    def decisions(self, job_id: str, cursor: str | None = None, limit: int = DEFAULT_PAGE) -> Page[DecisionRecord]:
        """What was decided for a job, newest first; empty for an unknown job.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        check_limit(limit)
        with self._read() as session:
            return history.decisions(session, job_id, cursor, limit)

    def sizes_given(self, job_id: str) -> list[tuple[float, Allocation]]:
        """When decisions gave a job another size (POSIX seconds), and which; oldest first."""
        with self._read() as session:
            return history.sizes_given(session, job_id)

    def latest_decisions(self, job_ids: Collection[str]) -> Mapping[str, DecisionRecord]:
        """What was decided last for each of these jobs, by job id; jobs without a decision are left out."""
        with self._read() as session:
            decisions = history.latest_decisions(session, job_ids, self._kept)
            return awaited.with_awaited(session, decisions, self._kept)

    def put_expected_times(
        self,
        times: Sequence[ExpectedTimesRecord],
        deadlines: Sequence[PromisedDeadline] = (),
    ) -> None:
        """Store when jobs are expected to start and to end, in the place of all that was expected before.

        What is said of jobs that are not there any more is left out. `deadlines`: those that are promised now; jobs
        that have ended since are left out.
        """
        with self._write() as session:
            known = expected_times.replace_all(session, times)
            shown_predictions.add_deadlines(session, [each for each in deadlines if each.job_id in known])

    def add_predictions(self, predictions: Sequence[PredictionRecord]) -> None:
        """Store predictions that are to be judged by the ends of their jobs, of those that there are."""
        if predictions:
            with self._write() as session:
                shown_predictions.add(session, predictions)
