"""A job whose tasks report nonsense within the bounds of the contract: it spoils nothing but its own predictions."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from httpx import ASGITransport, AsyncClient
from tests.service.loop.loop_world import World
from tests.service.store.store_builders import add_samples

from optimus_contract.codec import read
from optimus_contract.limits import MAX_COUNT, MAX_POSIX_SECONDS
from optimus_contract.telemetry import Sample
from optimus_scheduler.lifecycle import Outcome, ResultReported
from optimus_scheduler.model import JobState
from optimus_service.api.app import create_app
from optimus_service.api.services import Services
from optimus_service.metrics.registry import Metrics
from optimus_service.process.job_tokens import JobTokens
from optimus_service.push.long_poll import LongPolls
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository
from optimus_simulator.traces.own import read_own

YEAR = 365 * 86_400.0
PATHS = ["", "/predictions", "/explanation", "/events", "/decisions", "/allocations", "/tasks"]
ABSURD: dict[str, dict[str, Any]] = {
    "steps beyond all": {"step": MAX_COUNT, "n_steps": 10**6},
    "a large loss": {"loss": 1e300},
    "a very negative loss": {"loss": -1.7e308},
    "a tiny loss": {"loss": 5e-324},
    "no time at all": {"seconds": 0.0},
    "a million steps in a nanosecond": {"seconds": 1e-9, "n_steps": 10**6},
    "ages": {f"{part}seconds": MAX_POSIX_SECONDS for part in ("", "data_", "compute_", "push_", "wait_", "pull_")},
    "1970": {"at": 0.0},
    "a year ahead": {"at": 1_000_000.0 + YEAR},
    "the end of time": {"at": MAX_POSIX_SECONDS},
    "no examples": {"n_examples": 0, "data_epoch": 0.0},
    "all examples": {"n_examples": MAX_COUNT, "data_epoch": float(MAX_COUNT)},
    "a huge learning rate": {"learning_rate": 1e9},
    "a huge metric": {"metrics": {"test_accuracy": 1.7e308}},
    "huge gradients": {"gradients": {"square": 1.7e308, "variance": -1.7e308}},
    "tiny gradients": {"gradients": {"square": 5e-324, "variance": 1.7e308}},
    "a batch that it cannot have": {"updates": 10**6, "global_batch": MAX_COUNT},
    "more workers than there are": {"workers": 1024, "servers": 1024},
    "huge use": {"usage": {"cpu_cores": 1e6, "memory_bytes": MAX_COUNT}},
    "a huge staleness": {"staleness": float(MAX_COUNT)},
}


class AbsurdWorld(World):
    """The job `absurd` sends samples with `changes` each second; without any it sends none."""

    changes: Mapping[str, Any] | None = None

    def _second(self, job: JobRecord) -> None:
        if job.id != "absurd":
            super()._second(job)
            return
        state = self.coordinators.get(job.id)
        if self.changes is None or state is None or not state.workers:
            return
        state.step += 10
        document = {
            "membership_epoch": state.epoch,
            "rank": 0,
            "sequence": state.sequence,
            "workers": state.workers,
            "servers": state.servers,
            "at": self.clock(),
            "step": state.step,
            "n_steps": 10,
            "data_epoch": state.step / 20.0,
            "loss": self.loss_at(state.step),
            "n_examples": 320,
            "seconds": 1.0,
            **self.changes,
        }
        state.sequence += 1
        assert add_samples(self.repository, job.id, [read(Sample, document)], self.clock()).accepted == 1

    def _finish(self, job: JobRecord, state: Any) -> None:
        if job.id != "absurd":
            super()._finish(job, state)


def lived(directory: Path, migrated: Path, changes: Mapping[str, Any] | None) -> AbsurdWorld:
    """Both jobs have trained through some rounds. Neither grows, so that they are as large in each world."""
    directory.mkdir()
    path = directory / "optimus.db"
    shutil.copy(migrated, path)
    world = AbsurdWorld(Repository(create_engine_from_url(f"sqlite:///{path}")), directory)
    world.changes = changes
    sizes = {"workers": {"max": 1}, "servers": {"max": 1}}
    world.submit("honest", **sizes)
    world.submit("absurd", **sizes)
    for _ in range(4):
        world.round()
        world.train(3)
    return world


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: Path) -> Iterator[AbsurdWorld]:
    """In it the other job says nothing."""
    world = lived(tmp_path_factory.mktemp("undisturbed") / "world", migrated_sqlite, None)
    yield world
    world.repository.close()


def answers(world: World) -> dict[str, Any]:
    """What everybody who looks at the service is told, by path; each has to be an answer."""
    metrics = Metrics()
    services = Services(
        settings=world.settings,
        repository=world.repository,
        cluster=world.cluster,
        long_polls=LongPolls(world.repository.wanted.generations),
        job_tokens=JobTokens(b"secret"),
        version="0",
        clock=world.clock,
        metrics=metrics,
    )
    transport = ASGITransport(create_app(services))
    jobs = [f"/v1/jobs/{name}{end}" for name in ("absurd", "honest") for end in PATHS]
    paths = ["/v1/jobs", "/v1/cluster", "/v1/cluster/history", "/v1/promises", "/metrics", "/v1/trace", *jobs]

    async def ask() -> dict[str, Any]:
        async with AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return {path: await client.get(path) for path in paths}

    with start_blocking_portal() as portal:
        found = portal.call(ask)
    assert {path: answer.status_code for path, answer in found.items()} == dict.fromkeys(paths, 200)
    return {path: answer.text if path in ("/metrics", "/v1/trace") else answer.json() for path, answer in found.items()}


@pytest.mark.parametrize("changes", ABSURD.values(), ids=ABSURD.keys())
def test_nonsense_of_one_job_changes_nothing_of_another(
    undisturbed: AbsurdWorld, tmp_path: Path, migrated_sqlite: Path, changes: Mapping[str, Any]
) -> None:
    world = lived(tmp_path / "world", migrated_sqlite, changes)
    expected, found = (_decisions(each) for each in (undisturbed, world))
    assert found == expected
    told, before = answers(world), answers(undisturbed)
    assert told["/v1/jobs/honest"] == before["/v1/jobs/honest"]
    assert told["/v1/jobs/honest/predictions"] == before["/v1/jobs/honest/predictions"]
    mine = 'job_id="honest"'
    lines, lines_before = (
        [line for line in each["/metrics"].splitlines() if mine in line and "_created" not in line]
        for each in (told, before)
    )
    assert lines == lines_before
    assert world.repository.jobs.get("honest").state is JobState.RUNNING
    _ended(world, "absurd")
    assert world.round().error is None  # it learns from the ended job
    *lines, end = answers(world)["/v1/trace"].splitlines()
    assert end.startswith('{"end": {'), "it is told to its end"
    (tmp_path / "trace.jsonl").write_text("\n".join(lines))
    read_own(tmp_path / "trace.jsonl")
    world.repository.close()


def _ended(world: World, job_id: str) -> None:
    job = world.repository.jobs.get(job_id)
    world.repository.jobs.advance(job_id, ResultReported(Outcome.SUCCEEDED, job.step, job.loss, {}), world.clock())


def _decisions(world: World) -> list[dict[str, Any]]:
    """Of the honest job, without the numbers of rows."""
    return [
        {**asdict(each), "id": 0, "round_id": 0}
        for each in world.repository.rounds.decisions("honest", limit=1000).items
    ]
