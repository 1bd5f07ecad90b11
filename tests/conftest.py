"""What tests of several packages share: a Kubernetes control plane, an order, a place to show what came out."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from tests.service.clusters.kubernetes.control_plane import Binaries, ControlPlane, ControlPlaneMissing

# No example has to be ready in some time, nor fast to make: machines are busy.
settings.register_profile("varied", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("varied"), derandomize=True)
"""For CI, where a change is judged by its own failures; elsewhere each run tries other examples."""
settings.load_profile("varied")


@pytest.fixture(scope="session")
def control_plane() -> Iterator[ControlPlane]:
    """A control plane that the tests started; those that need no more than an API server take `kubeconfig`."""
    try:
        binaries = Binaries.find()
    except ControlPlaneMissing as missing:
        if os.environ.get("OPTIMUS_TEST_REQUIRE_KUBERNETES") == "1":
            pytest.fail(f"OPTIMUS_TEST_REQUIRE_KUBERNETES=1, but {missing}")
        pytest.skip(str(missing))
    started = ControlPlane(binaries)
    try:
        yield started
    finally:
        started.close()


@pytest.fixture(scope="session")
def kubeconfig(request: pytest.FixtureRequest) -> Path:
    """Of an administrator of the cluster to test with."""
    if given := os.environ.get("OPTIMUS_TEST_KUBECONFIG"):
        return Path(given)
    started: ControlPlane = request.getfixturevalue("control_plane")
    return started.kubeconfig


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Nothing of what collection makes is garbage: to walk it again and again would take as long as all the rest."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `pytest -n 2` a file stays in one process, for what it shares, and so does all that shares a Kubernetes
    control plane. Tests of a file that take long and share nothing run wherever there is room.

    With `-n 3` the third process has the tests that mostly wait, and no other: those that compute never have more than
    one of their kind beside them.
    """
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            if path.startswith(_WITH_A_CONTROL_PLANE):
                return _KUBERNETES
            return nodeid if path in _ALONE else path

        def _reschedule(self, node: Any) -> None:
            if node.shutting_down:
                return
            if self._next_for(node) is None:
                node.shutdown()
            # The test that runs and the one after it: of more, a long one would wait for another.
            elif self._pending_of(self.assigned_work[node]) < 2:
                self._assign_work_unit(node)

        def _assign_work_unit(self, node: Any) -> None:
            if (scope := self._next_for(node)) is not None:
                self.workqueue.move_to_end(scope, last=False)
                super()._assign_work_unit(node)

        def _next_for(self, node: Any) -> str | None:
            """The first of its kind that is left; the first two processes help with what waits at the end."""
            waiting = [scope for scope in self.workqueue if scope.startswith(_WAITING)]
            if self.nodes.index(node) >= N_COMPUTING:
                return next(iter(waiting), None)
            if len(self.nodes) <= N_COMPUTING:
                return next(iter(self.workqueue), None)
            return next((scope for scope in self.workqueue if scope not in waiting), next(iter(waiting), None))

    # Else the files with most tests come first, and the end waits for those with few long ones.
    config.option.loadscopereorder = False
    return Files(config, log)


N_COMPUTING = 2
"""Processes with tests that compute; those beyond have tests that wait."""
_KUBERNETES = "kubernetes"
_WAITING = (
    _KUBERNETES,
    "tests/end_to_end/test_allreduce.py::test_allreduce_job_is_resized_while_it_trains",
    "tests/end_to_end/test_elastic_batch.py",
    "tests/end_to_end/test_first_steps.py::test_a_first_day_of_",
    "tests/end_to_end/test_first_steps.py::test_a_service_in_the_background_is_ready_told_and_stopped",
    "tests/end_to_end/test_owner_changes.py",
    "tests/end_to_end/test_restore.py",
    "tests/end_to_end/test_scripts.py",
    "tests/end_to_end/test_second_chances.py",
    "tests/end_to_end/test_stragglers.py",
    "tests/end_to_end/test_survival.py::test_a_stopped_coordinator_",
    "tests/end_to_end/test_trouble.py",
    "tests/service/api/test_isolation.py",
    "tests/workers/protocol/test_network_cut.py",
    "tests/workers/protocol/test_refused_calls.py",
    "tests/workers/protocol/test_script_hangs.py",
    "tests/workers/protocol/test_script_jobs.py::test_a_change_of_size_after_",
    "tests/workers/protocol/test_script_jobs.py::test_a_command_that_",
    "tests/workers/protocol/test_script_jobs.py::test_a_coordinator_that_was_stopped_",
    "tests/workers/protocol/test_script_jobs.py::test_a_script_that",
    "tests/workers/protocol/test_script_jobs.py::test_another_attempt_",
    "tests/workers/protocol/test_script_jobs.py::test_how_a_script_writes_",
    "tests/workers/protocol/test_script_jobs.py::test_no_two_processes_",
    "tests/workers/protocol/test_script_jobs.py::test_steps_of_an_epoch_",
    "tests/workers/protocol/test_worker_hangs.py",
)
"""For pods, leases, deadlines, and trainings whose steps sleep."""
_WITH_A_CONTROL_PLANE = ("tests/service/clusters/", "tests/helm/test_release.py")
_ALONE = (
    "tests/end_to_end/test_allreduce.py",
    "tests/end_to_end/test_demo.py",
    "tests/end_to_end/test_first_steps.py",
    "tests/end_to_end/test_survival.py",
    "tests/workers/protocol/test_script_frameworks.py",
    "tests/workers/protocol/test_script_jobs.py",
    "tests/simulation/test_mutations.py",
    "tests/simulation/test_world.py",
)
_LONG = (
    *_WITH_A_CONTROL_PLANE,
    "tests/end_to_end/",
    "tests/workers/protocol/",
    "tests/service/seeing/",
    "tests/service/server/",
    "tests/client/",
    "tests/simulation/",
)
"""Begun first, in this order: what is short fills the gaps at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first, those of one place in their usual order."""
    places = [*_LONG, ""]
    items.sort(key=lambda item: next(rank for rank, place in enumerate(places) if item.nodeid.startswith(place)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests noted with `record_property("summary", ...)` stands in the log, whichever process they ran in."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "summary":
                terminalreporter.section(report.nodeid)
                terminalreporter.line(str(value))
