"""The stream for those who watch, and the cluster over time."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.service.api.api_harness import NOW, Api, faults, on_sqlite
from tests.service.loop.loop_world import World
from tests.service.seeing.test_explanation import a_record
from tests.service.store.store_builders import a_membership

from optimus_contract import answers
from optimus_contract.interval_words import is_limit
from optimus_scheduler.model import JobState
from optimus_service.api.cluster.stream import as_events
from optimus_service.clusters.fake import FakeCluster
from optimus_service.insight.cluster.timeline import MAX_SERIES, timeline
from optimus_service.push import feed as feed_module
from optimus_service.push import stream_state
from optimus_service.push.feed import (
    MAX_STREAMS_OF_USER,
    Change,
    Feed,
    Places,
    TooManyStreamsOfUser,
    TooManySubscribers,
    difference,
)
from optimus_service.push.stream_state import StreamState, read_stream_state
from optimus_service.store.errors import DatabaseNotAvailable
from optimus_service.store.records import MembershipRecord


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


VIEWS = st.builds(
    StreamState,
    st.text("ab", min_size=1, max_size=2),
    st.dictionaries(st.text("xyz", max_size=2), st.text("12", max_size=2)),
)


# --- what changed ----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.one_of(st.none(), VIEWS), VIEWS)
def test_a_change_leads_from_one_state_to_the_next(before: StreamState | None, after: StreamState) -> None:
    change = difference(before, after)
    jobs = dict({} if before is None else before.jobs)
    for job_id in change.gone:
        del jobs[job_id]
    jobs.update(change.jobs)
    assert jobs == after.jobs
    assert (change.cluster or ("" if before is None else before.cluster)) == after.cluster
    assert difference(after, after).is_empty


def test_events_are_what_the_standard_says() -> None:
    text = as_events(Change('{"a":1}', {"x": '{"id":"x"}', "y": '{"id":"y"}'}, ("z",)))
    blocks = [dict(line.split(": ", 1) for line in block.split("\n")) for block in text.strip().split("\n\n")]
    assert [block["event"] for block in blocks] == ["cluster", "gone", "jobs"]
    assert json.loads(blocks[2]["data"]) == [{"id": "x"}, {"id": "y"}]
    assert as_events(Change()).startswith(": ")
    assert as_events(Change('{"a":1}', {}, ()), is_all=True).endswith("event: jobs\ndata: []\n\n")
    assert as_events(Change(), is_all=True).startswith(": ")


# --- one reader for all ----------------------------------------------------------------------------------------------


def state(number: int) -> StreamState:
    return StreamState(f"cluster {number}", {"job": f"line {number}"})


def test_one_user_takes_no_more_than_a_users_places() -> None:
    places = Places()
    with ExitStack() as taken:
        for _ in range(MAX_STREAMS_OF_USER):
            taken.enter_context(places.taken("vic"))
        with pytest.raises(TooManyStreamsOfUser), places.taken("vic"):
            pass
        for user in ("olga", None):
            with places.taken(user):
                pass
    with places.taken("vic"):
        pass


@pytest.mark.anyio
async def test_everybody_gets_everything_and_then_what_changed() -> None:
    seen = iter(range(10**6))
    reads: list[int] = []

    def read() -> StreamState:
        reads.append(next(seen))
        return state(reads[-1] // 3)

    closed = False
    feed = Feed(read, lambda: closed, period_seconds=0.001)
    places = ExitStack()
    first, second = (places.enter_context(feed.watching()) for _ in range(2))
    assert (await anext(first)).jobs.keys() == {"job"}
    assert (await anext(second)).cluster is not None
    later = [await anext(first) for _ in range(3)]
    assert all(one.cluster != other.cluster for one, other in pairwise(later))
    places.close()
    count = len(reads)
    await asyncio.sleep(0.02)
    assert len(reads) <= count + 1, "nobody watches: nothing is read"


@pytest.mark.anyio
async def test_streams_end_with_the_service() -> None:
    closed = False
    feed = Feed(lambda: state(1), lambda: closed, period_seconds=0.001)
    with feed.watching() as changes:
        await anext(changes)
        closed = True
        remaining = [change async for change in changes]
    assert all(change.is_empty for change in remaining)


@pytest.mark.anyio
async def test_a_silent_feed_still_breathes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "HEARTBEAT_SECONDS", 0.01)
    feed = Feed(lambda: state(1), lambda: False, period_seconds=0.001)
    with feed.watching() as changes:
        await anext(changes)
        assert (await anext(changes)).is_empty


@pytest.mark.anyio
async def test_without_a_database_watchers_wait() -> None:
    answers: list[Any] = [DatabaseNotAvailable("away"), DatabaseNotAvailable("away"), state(1)]

    def read() -> StreamState:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, StreamState)
        return answer

    feed = Feed(read, lambda: False, period_seconds=0.001)
    with feed.watching() as changes:
        assert (await anext(changes)).cluster == "cluster 1"


@pytest.mark.anyio
async def test_watchers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed_module, "MAX_SUBSCRIBERS", 1)
    feed = Feed(lambda: state(1), lambda: False, period_seconds=0.001)
    with feed.watching(), pytest.raises(TooManySubscribers), feed.watching():
        pass
    with feed.watching():
        pass  # the place is free again


# --- what is shown ---------------------------------------------------------------------------------------------------


def test_it_has_active_and_ended_jobs_and_why_some_wait(world: World) -> None:
    world.submit("first", workers={"min": 6, "max": 6}, servers={"max": 1})
    world.round()
    world.submit("second", workers={"min": 6, "max": 6})
    world.round()
    world.train(3)
    found = read_stream_state(world.repository, world.cluster, "optimus", "1", world.clock())
    cluster = json.loads(found.cluster)
    assert (cluster["capacity"]["cpu"], cluster["used"]["cpu"], cluster["nodes"]) == (8.0, 7.0, 2)
    first, *others = world.cluster.nodes()
    half_closed = FakeCluster((replace(first, schedulable=False), *others))
    closed = json.loads(read_stream_state(world.repository, half_closed, "optimus", "1", world.clock()).cluster)
    assert closed["cordoned"] == 1
    assert closed["capacity"]["cpu"] == 8.0, "7 of 4 cores are nowhere in use"
    assert cluster["waiting_by_reason"] == {"WaitingForResources": 1}
    lines = {job_id: json.loads(line) for job_id, line in found.jobs.items()}
    assert (lines["first"]["state"], lines["first"]["workers"]) == ("running", 6)
    assert (lines["second"]["state"], lines["second"]["reason"]) == ("queued", "WaitingForResources")
    world.live_until("the first has ended", lambda: world.state("first") is JobState.SUCCEEDED)
    assert "first" in read_stream_state(world.repository, world.cluster, "optimus", "1", world.clock()).jobs
    world.cluster.available = False
    assert json.loads(read_stream_state(world.repository, world.cluster, "optimus", "1", world.clock()).cluster)[
        "cluster_error"
    ]


def test_it_says_how_many_jobs_it_leaves_out(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_state, "MAX_ACTIVE", 2)
    for number in range(3):
        world.submit(f"job-{number}")
        world.clock.now += 1.0
    found = read_stream_state(world.repository, world.cluster, "optimus", "1", world.clock())
    assert (json.loads(found.cluster)["left_out"], set(found.jobs)) == (1, {"job-1", "job-2"})


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1e7), min_size=3, max_size=3).map(sorted), st.booleans())
def test_only_a_limit_is_told_as_one(ends: list[float], is_without_low: bool) -> None:
    """Though bounds are told to some 5 % of the mean: a limit is nothing that may come later, or is told to come."""
    low, mean, high = ends
    given_ends = (mean, None if is_without_low else low, high)
    found = stream_state.steady(answers.Interval(mean=mean, low=given_ends[1], high=high))
    assert found is not None
    assert is_limit(found.mean, found.low, found.high) <= is_limit(*given_ends)
    assert found.mean == pytest.approx(mean, rel=0.05, abs=0.5)
    assert found.high == pytest.approx(high, rel=0.075, abs=1.5)


def test_a_doubtful_start_is_told_with_its_doubt() -> None:
    for low, high, told in ((10.0, 838.0, (16.0, 864.0)), (10.0, 834.0, (16.0, 832.0)), (0.0, 834.0, (0.0, 832.0))):
        found = stream_state.steady(answers.Interval(mean=834.0, low=low, high=high))
        assert found == answers.Interval(mean=832.0, low=told[0], high=told[1])


# --- over time -------------------------------------------------------------------------------------------------------


def test_history_tells_who_had_how_much(api: Api) -> None:
    job_id = api.submit()
    api.start(job_id, at=NOW + 100)
    api.start(job_id, epoch=2, workers=4, servers=2, at=NOW + 200, cause="rescale", generation=2)
    api.surroundings.clock.now = NOW + 300
    found = api.get("/v1/cluster/history", params={"seconds": 400, "points": 5}).json()
    assert (found["unit"], found["capacity"]) == ("cpu_cores", 8.0)
    assert found["at"] == [NOW - 100, NOW, NOW + 100, NOW + 200, NOW + 300]
    assert found["series"] == [{"id": job_id, "name": "digits", "held": [0.0, 0.0, 3.0, 6.0, 6.0]}]
    assert found["training"] == [0, 0, 1, 1, 1]
    assert found["waiting"] == [0, 1, 0, 0, 0]
    api.post(f"/v1/jobs/{job_id}/cancel")
    assert api.get("/v1/cluster/history").status_code == 200


@on_sqlite
def test_a_span_out_of_bounds_is_refused(api: Api) -> None:
    assert set(faults(api.get("/v1/cluster/history", params={"seconds": 1, "points": 10**6}))) == {"seconds", "points"}


def test_a_job_whose_workers_are_gone_holds_nothing_whatever_its_last_membership_says() -> None:
    """After an error nobody is left who would report that the membership is over."""
    record = a_record("job-1", finished_at=None)
    members = {"job-1": [a_membership("job-1", epoch=1, at=10.0, workers=("w",), servers=())]}
    found = timeline([record], members, "cpu_cores", 0.0, 100.0, 6, {"job-1": [(5.0, 50.0), (80.0, None)]})
    assert found.at == (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
    assert found.allocated == ((0.5, 1.0, 0.5, 0.0, 1.0, 1.0),), "in the mean until the next moment, and now"
    assert found.training == (0.5, 1.0, 0.5, 0.0, 1.0, 1.0)


def test_jobs_that_hold_something_now_have_areas_before_larger_ones_that_ended() -> None:
    ended = [a_record(f"ended-{number}", finished_at=90.0) for number in range(MAX_SERIES)]
    jobs = [*ended, a_record("now", finished_at=None), a_record("waits", finished_at=None)]
    members = {
        job.id: [a_membership(job.id, epoch=1, at=80.0 if job.id == "now" else 0.0, workers=("w",), servers=())]
        for job in jobs[:-1]
    }
    found = timeline(jobs, members, "cpu_cores", 0.0, 100.0, 6)
    assert [job.id for job in found.jobs] == [*(job.id for job in ended[:-1]), "now"]
    assert max(found.others) == 1.0


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 9)), max_size=4), max_size=15))
def test_nothing_is_lost_between_series_and_others(sizes: list[list[tuple[float, int]]]) -> None:
    jobs = [a_record(f"job-{number}", finished_at=None) for number in range(len(sizes))]
    memberships = {
        f"job-{number}": [
            a_membership(f"job-{number}", epoch=epoch, at=at, workers=("w",) * n_workers, servers=())
            for epoch, (at, n_workers) in enumerate(sorted(each), 1)
        ]
        for number, each in enumerate(sizes)
    }
    found = timeline(jobs, memberships, "cpu_cores", 0.0, 100.0, 7)
    assert len(found.jobs) <= MAX_SERIES
    for index, (at, until) in enumerate(zip(found.at, (*found.at[1:], found.at[-1]), strict=True)):
        expected = sum(mean_workers(each, at, until) for each in memberships.values())
        assert sum(series[index] for series in found.allocated) + found.others[index] == pytest.approx(expected)
        assert found.training[index] + found.waiting[index] == pytest.approx(len(jobs))


def mean_workers(memberships: Sequence[MembershipRecord], begin: float, end: float) -> float:
    """From `begin` to `end`; at that moment where they are the same."""
    if begin == end:
        return float(next((len(each.workers) for each in reversed(memberships) if each.at <= begin), 0))
    spans = zip(memberships, [*(each.at for each in memberships[1:]), math.inf], strict=False)
    worked = (len(each.workers) * max(min(until, end) - max(each.at, begin), 0.0) for each, until in spans)
    return sum(worked) / (end - begin)


def test_a_job_that_came_and_went_between_two_moments_is_not_missing() -> None:
    record = a_record("job-1", finished_at=55.0)
    members = {"job-1": [a_membership("job-1", epoch=1, at=45.0, workers=("w",), servers=())]}
    found = timeline([record], members, "cpu_cores", 0.0, 100.0, 6)
    assert found.at == (0.0, 20.0, 40.0, 60.0, 80.0, 100.0)
    assert found.allocated == ((0.0, 0.0, 0.5, 0.0, 0.0, 0.0),)
    assert found.training == (0.0, 0.0, 0.5, 0.0, 0.0, 0.0), "in the same means"


def test_a_job_that_waited_between_two_moments_is_counted() -> None:
    record = replace(a_record("job-1", finished_at=59.0), created_at=41.0)
    members = {"job-1": [a_membership("job-1", epoch=1, at=51.0, workers=("w",), servers=())]}
    found = timeline([record], members, "cpu_cores", 0.0, 100.0, 6)
    assert (found.training[2], found.waiting[2]) == (0.4, 0.5)
    assert sum(found.training) + sum(found.waiting) == pytest.approx(0.9)
