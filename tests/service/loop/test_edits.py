"""Editing a live job: whatever its owner writes, no node is booked beyond what it has."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.service.loop.loop_world import NODES, World

from optimus_contract.change import CHANGEABLE
from optimus_contract.codec import field_types, write
from optimus_contract.job import JobSpec
from optimus_scheduler.model import Resources
from optimus_service.api.jobs.editing import edit_of, table
from optimus_service.requests import checked
from optimus_service.store.database.engine import create_engine_from_url
from optimus_service.store.repository import Repository

DOCS = Path(__file__).resolve().parents[3] / "docs/training-job.md"

cpus = st.sampled_from([0.5, 1.0, 1.5, 2.5, 4.0])
demands = st.fixed_dictionaries(
    {}, optional={"min": st.integers(1, 4), "max": st.integers(1, 6), "resources": st.builds(dict, cpu=cpus)}
)
edits = st.fixed_dictionaries(
    {},
    optional={
        "workers": demands,
        "servers": demands,
        "priority": st.floats(0.1, 10.0),
        "convergence": st.builds(dict, max_epochs=st.integers(50, 100)),
    },
)


def wanted_spec(document: dict[str, Any]) -> JobSpec | None:
    try:
        return checked(JobSpec, {"name": "job-1", "task": "m:f", **document})
    except ValidationError:
        return None


@settings(max_examples=15)
@given(st.lists(st.tuples(st.sampled_from(["job-1", "job-2"]), edits), min_size=1, max_size=5))
def test_no_edit_books_a_node_twice(migrated_sqlite: Path, changes: list[tuple[str, dict[str, Any]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        shutil.copy(migrated_sqlite, f"{directory}/optimus.db")
        repository = Repository(create_engine_from_url(f"sqlite:///{directory}/optimus.db"))
        try:
            world = World(repository, Path(directory))
            for job_id in ("job-1", "job-2"):
                world.submit(job_id)
            world.round()
            for job_id, change in changes:
                wanted = wanted_spec(change)
                if wanted is None:
                    continue
                present = repository.jobs.get(job_id).spec
                edit = edit_of(present, wanted)
                assert repository.jobs.set_spec(job_id, present, edit.spec, edit.changes, world.clock())
                for _ in range(2):
                    world.clock.now += 60.0
                    world.round()
                    assert_within_capacity(world)
        finally:
            repository.close()


def assert_within_capacity(world: World) -> None:
    """Of the wanted tasks, by what each was really started with. (A task that leaves may overlap its replacement.)"""
    held = {launch.key: launch.resources for launch in world.cluster.launches}
    wanted = [task for each in world.repository.wanted.of_active_jobs().values() for task in each.tasks]
    for node in NODES:
        here = [held[task.key] for task in wanted if task.node == node.name and task.key in held]
        used = sum(here, Resources())
        assert used.fits_in(node.capacity), (node.name, used)


def test_fields_that_this_release_added_are_no_edit() -> None:
    spec = write(checked(JobSpec, {"name": "job-1", "task": "m:f"}))
    del spec["seed"], spec["workers"]["resources"]
    edit = edit_of(spec, checked(JobSpec, {"name": "job-1", "task": "m:f"}))
    assert edit.fixed == ()


def test_an_edit_keeps_what_only_a_newer_release_knows() -> None:
    stored = write(checked(JobSpec, {"name": "job-1", "task": "m:f"})) | {"of_a_newer_release": {"a": [1]}}
    del stored["seed"]
    unchanged = edit_of(stored, checked(JobSpec, {"name": "job-1", "task": "m:f"}))
    assert (unchanged.changed, unchanged.fixed) == (False, ())
    edit = edit_of(stored, checked(JobSpec, {"name": "job-1", "task": "m:f", "priority": 3.0}))
    assert (edit.changed, edit.fixed) == (True, ())
    assert edit.spec == {**stored, "seed": 0, "priority": 3.0}


def test_the_documentation_has_the_table() -> None:
    assert table() in DOCS.read_text()
    fields = field_types(JobSpec)
    assert all(path[0] in fields for path in CHANGEABLE)
