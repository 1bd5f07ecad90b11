"""Fixtures for the tests of the store."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from tests.service.store.store_builders import MakeJob

from optimus_service.store.records import JobRecord
from optimus_service.store.repository import Repository


@pytest.fixture
def make_job(repository: Repository) -> MakeJob:
    """Submits a job: `make_job("a-1", name="a", project="default", at=0.0)`."""

    def make(
        job_id: str = "job-1",
        *,
        name: str = "job",
        project: str = "default",
        at: float = 0.0,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> JobRecord:
        spec = {"name": name, "project": project, "task": "m:f", "labels": dict(labels)}
        job, created = repository.jobs.create(job_id, spec, "nonce", None, "hash", at)
        assert created
        return job

    return make
