from __future__ import annotations

from pathlib import Path

import pytest

from optimus_contract.job import Convergence, JobSpec
from optimus_workers.environment import TaskEnvironment
from optimus_workers.errors import EnvironmentProblem

COMPLETE = {
    "OPTIMUS_SERVICE_URL": "http://127.0.0.1:8080/",
    "OPTIMUS_JOB_ID": "digits-x7k2p",
    "OPTIMUS_JOB_TOKEN": "very-secret",
    "OPTIMUS_TASK_NAME": "digits-x7k2p-worker-1-0",
    "OPTIMUS_TASK_RANK": "1",
    "OPTIMUS_COORDINATOR_ADDRESS": "127.0.0.1:40123",
    "OPTIMUS_JOB_DIRECTORY": "/data/jobs/digits-x7k2p",
    "OPTIMUS_JOB_SPEC": '{"name": "digits", "task": "mine:task", "seed": 3, "some_day": 1}',
    "OPTIMUS_ATTEMPT": "2",
    "OPTIMUS_CPU_LIMIT": "0.25",
}


def test_reads_everything() -> None:
    environment = TaskEnvironment.from_environ(COMPLETE)
    assert environment == TaskEnvironment(
        service_url="http://127.0.0.1:8080",
        job_id="digits-x7k2p",
        job_token="very-secret",
        task_name="digits-x7k2p-worker-1-0",
        rank=1,
        coordinator_address=("127.0.0.1", 40123),
        job_directory=Path("/data/jobs/digits-x7k2p"),
        spec=JobSpec(name="digits", task="mine:task", seed=3, convergence=Convergence()),
        cpu_limit=0.25,
        attempt=2,
    )


def test_does_not_show_the_token() -> None:
    assert "very-secret" not in repr(TaskEnvironment.from_environ(COMPLETE))


@pytest.mark.parametrize("name", sorted(COMPLETE.keys() - {"OPTIMUS_ATTEMPT", "OPTIMUS_CPU_LIMIT"}))
def test_names_the_missing_variable(name: str) -> None:
    for incomplete in ({k: v for k, v in COMPLETE.items() if k != name}, {**COMPLETE, name: ""}):
        with pytest.raises(EnvironmentProblem, match=name):
            TaskEnvironment.from_environ(incomplete)


@pytest.mark.parametrize("text", ["absent", ""])
def test_no_cpu_limit(text: str) -> None:
    environ = {**COMPLETE, "OPTIMUS_CPU_LIMIT": text}
    if text == "absent":
        del environ["OPTIMUS_CPU_LIMIT"]
    assert TaskEnvironment.from_environ(environ).cpu_limit is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("OPTIMUS_TASK_RANK", "first"),
        ("OPTIMUS_TASK_RANK", "-1"),
        ("OPTIMUS_COORDINATOR_ADDRESS", "127.0.0.1"),
        ("OPTIMUS_COORDINATOR_ADDRESS", ":80"),
        ("OPTIMUS_COORDINATOR_ADDRESS", "host:0"),
        ("OPTIMUS_COORDINATOR_ADDRESS", "host:65536"),
        ("OPTIMUS_JOB_SPEC", "{"),
        ("OPTIMUS_JOB_SPEC", "[]"),
        ("OPTIMUS_JOB_SPEC", '{"name": "digits"}'),
        ("OPTIMUS_JOB_SPEC", '{"task": "mine:task", "compression": "of a later release"}'),
        ("OPTIMUS_CPU_LIMIT", "much"),
        ("OPTIMUS_CPU_LIMIT", "0"),
        ("OPTIMUS_CPU_LIMIT", "nan"),
    ],
)
def test_names_the_malformed_variable(name: str, text: str) -> None:
    with pytest.raises(EnvironmentProblem, match=name):
        TaskEnvironment.from_environ({**COMPLETE, name: text})


def test_address_of_ipv6() -> None:
    environ = {**COMPLETE, "OPTIMUS_COORDINATOR_ADDRESS": "[::1]:4000"}
    assert TaskEnvironment.from_environ(environ).coordinator_address == ("::1", 4000)
