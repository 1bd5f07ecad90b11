"""What calls cost by the number of active jobs: a list, a page's stream, a scrape, one job, its explanation.

    python -m benchmarks.at_size [--sizes 1000 3000 10000]

The jobs (half of them train) are those of `benchmarks.watching`, on SQLite in a temporary folder. The calls go through
the whole application of the service, in this process and without a network, each some times; the figure is the median
of the processor seconds of this process. Prints one JSON object: seconds by size, and for each call the exponent of its
growth (0: the same at each size, 1: proportional), by least squares of the logarithms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import structlog
from benchmarks.watching import fill

from optimus_scheduler.model import Node, Resources
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import WakeUpHub
from optimus_service.push.snapshot import read_view
from optimus_service.settings import Settings
from optimus_service.store.engine import create_engine_from_url, upgrade
from optimus_service.store.repository import Repository

REPEATS = 5
TRAINS, WAITS = "job-00042", "job-00043"
CALLS = {
    "list of 50": "/v1/jobs",
    "list of 200 that train": "/v1/jobs?state=running&limit=200",
    "find by name": f"/v1/jobs?name={TRAINS}&match=one",
    "job": f"/v1/jobs/{TRAINS}",
    "explanation of one that trains": f"/v1/jobs/{TRAINS}/explanation",
    "explanation of one that waits": f"/v1/jobs/{WAITS}/explanation",
    "cluster": "/v1/cluster",
    "scrape": "/metrics",
}


async def get(client: httpx.AsyncClient, path: str) -> None:
    """Raises `httpx.HTTPStatusError`."""
    answer = await client.get(path)
    answer.raise_for_status()


async def median_cpu_seconds(call: Callable[[], Coroutine[Any, Any, None]]) -> float:
    """After one call that is not counted."""
    found = []
    for _ in range(REPEATS + 1):
        begun = time.process_time()
        await call()
        found.append(time.process_time() - begun)
    return statistics.median(found[1:])


async def measured(services: Services) -> dict[str, float]:
    """Every call."""
    transport = httpx.ASGITransport(create_app(services))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        found = {name: await median_cpu_seconds(partial(get, client, path)) for name, path in CALLS.items()}

    async def view() -> None:
        read_view(services.repository, services.cluster, "optimus", "0", services.clock())

    return found | {"one read for all streams": await median_cpu_seconds(view)}


def at_size(n_jobs: int) -> dict[str, float]:
    """With so many active jobs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_directory=Path(folder))
        upgrade(settings.url)
        repository = Repository(create_engine_from_url(settings.url))
        fill(repository, n_jobs)
        services = Services(
            settings=settings,
            repository=repository,
            cluster=FakeCluster([Node(f"node-{n}", Resources(64.0, 2**38)) for n in range(n_jobs // 16)]),
            hub=WakeUpHub(repository.generations),
            job_tokens=JobTokens(b"benchmark"),
            version="benchmark",
        )
        found = asyncio.run(measured(services))
        repository.close()
    return {name: round(seconds, 4) for name, seconds in found.items()}


def exponent(by_size: dict[int, float]) -> float:
    """Of the growth."""
    fit = statistics.linear_regression(
        [math.log(size) for size in by_size], [math.log(max(seconds, 1e-4)) for seconds in by_size.values()]
    )
    return round(fit.slope, 2)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 3000, 10000])
    options = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    found = {size: at_size(size) for size in options.sizes}
    names = list(found[options.sizes[0]])
    report = {
        "cpu_seconds": {name: {size: found[size][name] for size in found} for name in names},
        "exponent": {name: exponent({size: found[size][name] for size in found}) for name in names},
        "peak_megabytes": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
