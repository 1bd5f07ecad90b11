"""For those who watch: a stream of what changes, and the cluster over time."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.types import Receive, Scope, Send

from optimus_contract import answers
from optimus_scheduler.model import Resources
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import documented
from optimus_service.api.services import CallerDep, Services, ServicesDep
from optimus_service.insight.cluster.timeline import timeline, unit_of
from optimus_service.metrics.registry import Metrics
from optimus_service.push.feed import Change, Feed, Places
from optimus_service.push.stream_state import StreamState, read_stream_state

MAX_JOBS = 2000
"""Jobs that one history is made of: active ones first, then those that ended last."""

_PIECE_BYTES = 65_536
"""Of what is sent to one who watches, so much waits in memory for a slow network, not the whole list."""
RIGHTS_SECONDS = 10.0
"""How often it is asked whether one who watches still may."""

router = APIRouter(route_class=StrictRoute, tags=["cluster"])


class Feeds:
    """The process's feeds: one for each set of projects that callers who watch may read."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._places = Places()
        self._feeds: dict[frozenset[str] | None, Feed] = {}

    @contextmanager
    def watching(self, projects: frozenset[str] | None, user: str | None = None) -> Iterator[AsyncGenerator[Change]]:
        """See `Feed.watching`."""
        feed = self._feeds.get(projects)
        if feed is None:
            feed = self._feeds[projects] = self._feed(projects)
        try:
            with feed.watching(user) as changes:
                yield changes
        finally:
            if not feed.is_watched and self._feeds.get(projects) is feed:
                del self._feeds[projects]

    def _feed(self, projects: frozenset[str] | None) -> Feed:
        services = self._services
        settings = services.settings

        def read() -> StreamState:
            repository, now = services.repository, services.clock()
            still = services.still_now()
            return read_stream_state(
                repository, services.cluster, settings.policy, services.version, now, projects, still
            )

        return Feed(read, lambda: services.long_polls.closed, places=self._places)


@router.get(
    "/v1/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **documented(429, 503)},
)
async def stream(request: Request, services: ServicesDep, caller: CallerDep) -> StreamingResponse:
    """Server-sent events: `cluster` and `jobs` with everything at first, then with what changed; `gone` with ids.

    The data of `cluster` is one `ClusterLine`, of `jobs` a list of `JobLine`, of `gone` a list of ids. A
    comment is sent at least every 15 seconds. It ends when the caller's token or rights do.
    """
    feeds, is_still_good = cast(Feeds, request.app.state.feeds), request.state.is_still_good
    user = None if caller.token_id is None else caller.name
    return _EventStream(feeds, caller.projects, user, is_still_good, services.metrics)


class _EventStream(StreamingResponse):
    """The answer to one who watches. It takes its place as it begins, so that no two take the last one."""

    def __init__(
        self,
        feeds: Feeds,
        projects: frozenset[str] | None,
        user: str | None,
        is_still_good: Callable[[], bool],
        metrics: Metrics,
    ) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._feeds = feeds
        self._projects = projects
        self._user = user
        self._is_still_good = is_still_good
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client or the service goes.

        Raises:
            TooManyStreamsOfUser, TooManySubscribers: nothing was sent.
        """
        with self._feeds.watching(self._projects, self._user) as changes:
            self._metrics.count_streams(1)
            try:
                self.body_iterator = self._events(changes)
                await super().__call__(scope, receive, send)
            finally:
                self._metrics.count_streams(-1)

    async def _events(self, changes: AsyncGenerator[Change]) -> AsyncGenerator[bytes]:
        checked, has_sent_all = time.monotonic(), False
        async for change in changes:
            if time.monotonic() - checked >= RIGHTS_SECONDS:
                checked = time.monotonic()
                if not await run_in_threadpool(self._is_still_good):
                    return
            said = _said(change, is_all=not has_sent_all)
            for begin in range(0, len(said), _PIECE_BYTES):
                yield said[begin : begin + _PIECE_BYTES]
            has_sent_all = has_sent_all or change.cluster is not None


def _said(change: Change, *, is_all: bool) -> bytes:
    said = change.said.get(is_all)
    if said is None:
        said = change.said[is_all] = as_events(change, is_all=is_all).encode()
    return said


def as_events(change: Change, *, is_all: bool = False) -> str:
    """A change in the words of server-sent events; a comment for none. The JSON in it has no line breaks.

    `is_all`: what is there at first, with `jobs` also where there is none: it takes the place of what was told before.
    """
    events = []
    if change.cluster is not None:
        events.append(f"event: cluster\ndata: {change.cluster}\n\n")
    if change.gone:
        events.append(f"event: gone\ndata: {json.dumps(change.gone)}\n\n")
    if change.jobs or (is_all and change.cluster is not None):
        events.append(f"event: jobs\ndata: [{','.join(change.jobs.values())}]\n\n")
    return "".join(events) or ": nothing new\n\n"


@router.get("/v1/cluster/history")
def show_history(
    services: ServicesDep,
    caller: CallerDep,
    seconds: Annotated[float, Query(ge=60, le=30 * 86_400, allow_inf_nan=False)] = 3600.0,
    points: Annotated[int, Query(ge=2, le=500)] = 120,
) -> answers.ClusterHistory:
    """Who had how much of the cluster during the last `seconds`, at `points` evenly spaced moments."""
    now = services.clock()
    nodes = services.cluster.nodes()
    capacity = sum((node.capacity for node in nodes if node.schedulable), Resources())
    jobs, memberships = services.repository.memberships.jobs_since(now - seconds, MAX_JOBS, caller.projects)
    unit = unit_of(capacity)
    worked = services.repository.tasks.worker_spans([job.id for job in jobs if not job.is_tracked])
    found = timeline(jobs, memberships, unit, now - seconds, now, points, worked)
    return answers.ClusterHistory(
        unit=unit,
        capacity=float(sum(capacity.gpus.values())) if unit == "gpus" else capacity.cpu,
        at=list(found.at),
        series=[
            answers.HistorySeries(id=job.id, name=job.name, held=list(allocated))
            for job, allocated in zip(found.jobs, found.allocated, strict=True)
        ],
        others=list(found.others),
        training=list(found.training),
        waiting=list(found.waiting),
    )
