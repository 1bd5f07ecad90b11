"""For those who watch: a stream of what changes, and the cluster over time."""

from __future__ import annotations

import json
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from optimus_contract import answers
from optimus_scheduler.model import Resources
from optimus_service.api.body import StrictRoute
from optimus_service.api.problems import documented
from optimus_service.api.services import Services, ServicesDep
from optimus_service.insight.timeline import timeline, unit_of
from optimus_service.metrics.registry import Metrics
from optimus_service.push.live_view import Change, Feed
from optimus_service.push.snapshot import read_view

MAX_JOBS = 2000
"""Jobs that one history is made of: active ones first, then those that ended last."""

router = APIRouter(route_class=StrictRoute, tags=["cluster"])


def make_feed(services: Services) -> Feed:
    """The process's one feed."""
    return Feed(
        lambda: read_view(
            services.repository, services.cluster, services.settings.policy, services.version, services.clock()
        ),
        lambda: services.hub.closed,
    )


@router.get(
    "/v1/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {}}}, **documented(503)},
)
async def stream(request: Request, services: ServicesDep) -> StreamingResponse:
    """Server-sent events: `cluster` and `jobs` with everything at first, then with what changed; `gone` with ids.

    The data of `cluster` is one `ClusterLine`, of `jobs` a list of `JobLine`, of `gone` a list of ids. A
    comment is sent at least every 15 seconds.
    """
    return _EventStream(cast(Feed, request.app.state.feed), services.metrics)


class _EventStream(StreamingResponse):
    """The answer to one who watches. It takes its place as it begins, so that no two take the last one."""

    def __init__(self, feed: Feed, metrics: Metrics) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._feed = feed
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the client or the service goes.

        Raises:
            TooManySubscribers: as many watch as there may be; nothing was sent.
        """
        with self._feed.watching() as changes:
            self._metrics.count_streams(1)
            try:
                self.body_iterator = (as_events(change) async for change in changes)
                await super().__call__(scope, receive, send)
            finally:
                self._metrics.count_streams(-1)


def as_events(change: Change) -> str:
    """A change in the words of server-sent events; a comment for none. The JSON in it has no line breaks."""
    events = []
    if change.cluster is not None:
        events.append(f"event: cluster\ndata: {change.cluster}\n\n")
    if change.gone:
        events.append(f"event: gone\ndata: {json.dumps(change.gone)}\n\n")
    if change.jobs:
        events.append(f"event: jobs\ndata: [{','.join(change.jobs.values())}]\n\n")
    return "".join(events) or ": nothing new\n\n"


@router.get("/v1/cluster/history")
def show_history(
    services: ServicesDep,
    seconds: Annotated[float, Query(ge=60, le=30 * 86_400, allow_inf_nan=False)] = 3600.0,
    points: Annotated[int, Query(ge=2, le=500)] = 120,
) -> answers.ClusterHistory:
    """Who had how much of the cluster during the last `seconds`, at `points` evenly spaced moments."""
    now = services.clock()
    nodes = services.cluster.nodes()
    capacity = sum((node.capacity for node in nodes if node.schedulable), Resources())
    jobs, memberships = services.repository.jobs_since(now - seconds, MAX_JOBS)
    unit = unit_of(capacity)
    found = timeline(jobs, memberships, unit, now - seconds, now, points)
    return answers.ClusterHistory(
        unit=unit,
        capacity=float(sum(capacity.gpus.values())) if unit == "gpus" else capacity.cpu,
        at=list(found.at),
        series=[
            answers.HistorySeries(id=job.id, name=job.name, held=list(held))
            for job, held in zip(found.jobs, found.held, strict=True)
        ],
        others=list(found.others),
        training=list(found.training),
        waiting=list(found.waiting),
    )
