"""What watching costs on a cluster with many jobs: the page, its stream and `/metrics`.

    python -m benchmarks.watching [--jobs 1000] [--json]

Makes a service with so many jobs (half of them train) on SQLite in a temporary folder, and measures, in CPU seconds of
this process: one read of the state for all who watch, one scrape, one history of an hour. With Chromium and Playwright
installed also what the page costs the browser: seconds of its main thread until the list is shown, for a change of
every job, and for typing into the search field. "shown" is wall time, all else is time of computing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from optimus_contract.codec import write
from optimus_contract.job import JobSpec
from optimus_contract.telemetry import Sample, SampleColumns
from optimus_scheduler.lifecycle import MembershipFormed
from optimus_scheduler.model import Allocation, Directive, Node, Resources, SetWanted
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.clusters.fake import FakeCluster
from optimus_service.insight.cluster.timeline import timeline
from optimus_service.process.job_tokens import JobTokens
from optimus_service.process.logs import logging_to_stderr
from optimus_service.push.long_poll import LongPolls
from optimus_service.push.stream_state import read_stream_state
from optimus_service.requests import checked
from optimus_service.settings import Settings
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.records import DecisionRecord, MembershipRecord, PostedSamples, RoundRecord
from optimus_service.store.repository import Repository
from optimus_service.store.rounds.forecasts import from_json

REPEATS = 5
FORECAST = {
    "total_steps": {"mean": 1000.0, "low": 800.0, "high": 1300.0},
    "remaining_steps": {"mean": 900.0, "low": 700.0, "high": 1200.0},
    "steps_per_second": 2.0,
    "confidence": 0.7,
    "loss_curve": {"beta0": 0.01, "beta1": 1.0, "beta2": 0.1, "scale": 2.0, "offset": 0.0},
}


def fill(repository: Repository, n_jobs: int) -> None:
    """Jobs of which every second one trains and tells."""
    now = time.time()
    spec = write(checked(JobSpec, {"name": "job", "task": "m:f"}))
    decisions = []
    for number in range(n_jobs):
        job_id, trains = f"job-{number:05d}", number % 2 == 0
        repository.jobs.create(job_id, {**spec, "name": job_id}, "n", None, "h", now - 3600)
        size = Allocation(2, 1) if trains else Allocation(0, 0)
        reason = "Unchanged" if trains else "WaitingForResources"
        decisions.append(
            DecisionRecord(
                job_id=job_id,
                at=now,
                allocation=size,
                previous=size,
                reason=reason,
                message="Why.",
                forecast=from_json(job_id, FORECAST),
            )
        )
        if trains:
            _train(repository, job_id, size, now)
    record = RoundRecord(at=now, trigger="period", seconds=1.0, phase_seconds={}, n_jobs=n_jobs, n_actions=0)
    repository.rounds.add(record, decisions)


def _train(repository: Repository, job_id: str, size: Allocation, now: float) -> None:
    repository.wanted.put([SetWanted(job_id, size, Directive.RUN, ())], now - 1000)
    workers = tuple(f"{job_id}-worker-{rank}-0" for rank in range(size.workers))
    report = MembershipRecord(
        job_id=job_id, epoch=1, generation=1, at=now - 900, step=0, workers=workers, servers=("s",), cause="start"
    )
    repository.memberships.report(job_id, report)
    repository.jobs.advance(job_id, MembershipFormed(1), now - 900)
    tell(repository, job_id, 0, now)


def tell(repository: Repository, job_id: str, sequence: int, now: float) -> None:
    """One record of one worker."""
    step = 10 * (sequence + 1)
    sample = Sample(
        membership_epoch=1,
        rank=0,
        sequence=sequence,
        workers=2,
        servers=1,
        at=now,
        step=step,
        n_steps=10,
        data_epoch=0.1,
        loss=2.0,
        n_examples=640,
        seconds=5.0,
        compute_seconds=4.0,
    )
    repository.samples.add([PostedSamples(job_id, SampleColumns.of([sample]), now)])


def cpu_seconds(action: Callable[[], Any]) -> float:
    """Median CPU seconds of this process for one call."""
    found = []
    for _ in range(REPEATS):
        started = time.process_time()
        action()
        found.append(time.process_time() - started)
    return sorted(found)[REPEATS // 2]


def measure_service(services: Services) -> dict[str, Any]:
    """What the service does for those who watch."""
    repository, now = services.repository, time.time()
    state = read_stream_state(repository, services.cluster, "optimus", "0", services.clock())

    def history() -> None:
        jobs, memberships = repository.memberships.jobs_since(now - 3600, 2000)
        timeline(jobs, memberships, "cpu_cores", now - 3600, now, 160)

    return {
        "view_cpu_seconds": cpu_seconds(
            lambda: read_stream_state(repository, services.cluster, "optimus", "0", services.clock())
        ),
        "view_bytes": sum(map(len, state.jobs.values())),
        "scrape_cpu_seconds": cpu_seconds(services.metrics.text),
        "scrape_bytes": len(services.metrics.text()),
        "history_cpu_seconds": cpu_seconds(history),
    }


def measure_browser(url: str, change: Callable[[], None]) -> dict[str, Any]:
    """What the page costs the browser's main thread."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=flags)
        page = browser.new_page()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")

        def busy() -> float:
            metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
            return float(metrics["TaskDuration"])

        started = time.monotonic()
        page.goto(url)
        page.locator("table.jobs tbody tr").first.wait_for()
        shown = time.monotonic() - started
        page.get_by_role("button", name="training").click()
        page.get_by_text("step 10", exact=True).first.wait_for()
        loaded = busy()
        change()
        page.get_by_text("step 20", exact=True).first.wait_for(timeout=60_000)
        changed = busy()
        page.get_by_role("searchbox").fill("job-00042")
        expect(page.locator("table.jobs tbody tr")).to_have_count(1)
        typed = busy()
        elements = page.evaluate("document.querySelectorAll('*').length")
        browser.close()
    return {
        "shown_seconds": shown,
        "load_main_thread_seconds": loaded,
        "change_of_all_main_thread_seconds": changed - loaded,
        "search_main_thread_seconds": typed - changed,
        "elements": elements,
    }


def run(n_jobs: int) -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(data_directory=Path(folder), log_level="warning")
        with logging_to_stderr(settings):  # stdout is for the figures
            return _run(settings, n_jobs)


def _run(settings: Settings, n_jobs: int) -> dict[str, Any]:
    upgrade(settings.url)
    repository = Repository(create_engine_from_url(settings.url))
    fill(repository, n_jobs)
    services = Services(
        settings=settings,
        repository=repository,
        cluster=FakeCluster([Node(f"node-{n}", Resources(64.0, 2**38)) for n in range(30)]),
        long_polls=LongPolls(repository.wanted.generations),
        job_tokens=JobTokens(b"secret"),
        version="0",
    )
    figures = {"jobs": n_jobs}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(services), log_config=None, timeout_graceful_shutdown=1))
        figures |= measure_service(services)
        if shutil.which("chromium"):
            serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
            serving.start()
            trains = [job.id for job in repository.jobs.active() if job.running.workers]

            def change() -> None:
                for job_id in trains:
                    tell(repository, job_id, 1, time.time())

            try:
                figures |= measure_browser(f"http://127.0.0.1:{listener.getsockname()[1]}", change)
            finally:
                services.long_polls.close()
                server.should_exit = True
                serving.join()
    repository.close()
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = run(options.jobs)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:40} {value:.4g}")


if __name__ == "__main__":
    main()
