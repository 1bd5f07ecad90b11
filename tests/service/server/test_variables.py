"""Variables of the environment: which are settings, which belong to others, which are misspelled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from optimus_scheduler.objective import MEAN_JCT, Objective
from optimus_service.settings import Settings, misspelled_variables

ROOT = Path(__file__).parents[3]
LINKS = {
    "OPTIMUS_SERVICE_HOST": "10.0.0.1",
    "OPTIMUS_SERVICE_PORT": "8080",
    "OPTIMUS_SERVICE_PORT_HTTP": "8080",
    "OPTIMUS_PORT": "tcp://10.0.0.1:8080",
    "OPTIMUS_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    "OPTIMUS_PORT_8080_TCP_PROTO": "tcp",
    "OPTIMUS_PORT_8080_TCP_PORT": "8080",
    "OPTIMUS_PORT_8080_TCP_ADDR": "10.0.0.1",
    "OPTIMUS_POSTGRES_SERVICE_HOST": "10.0.0.2",
    "OPTIMUS_POSTGRES_PORT": "tcp://10.0.0.2:5432",
    "OPTIMUS_POSTGRES_PORT_5432_TCP_ADDR": "10.0.0.2",
}
"""What Kubernetes sets for Services of the names `optimus` and `optimus-postgres`."""


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("OPTIMUS_TOKN", "OPTIMUS_TOKEN"),
        ("OPTIMUS_DATABSE_URL", "OPTIMUS_DATABASE_URL"),
        ("OPTIMUS_KUBERNETES__NAMESPCE", "OPTIMUS_KUBERNETES__NAMESPACE"),
        ("OPTIMUS_KUBERNETES_NAMESPACE", "OPTIMUS_KUBERNETES__NAMESPACE"),
        ("optimus_toke", "OPTIMUS_TOKEN"),
    ],
)
def test_a_misspelled_variable_stops_the_service_and_the_right_one_is_named(
    tmp_path: Path, name: str, meant: str
) -> None:
    ours = {variable: value for variable, value in os.environ.items() if not variable.startswith("OPTIMUS_")}
    command = [sys.executable, "-m", "optimus_cli", "serve", "--port", "0", "--data-directory", str(tmp_path / "data")]
    done = subprocess.run(
        command, env=ours | {name: "secret value"}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    said = " ".join(done.stderr.split())
    assert name in said
    assert f"did you mean {meant}?" in said
    assert "secret value" not in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "data").exists()


def test_what_kubernetes_sets_for_services_is_no_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    assert misspelled_variables(LINKS) == []
    monkeypatch.setenv("OPTIMUS_PORT", LINKS["OPTIMUS_PORT"])
    assert Settings().port == 8080


def test_settings_in_parts_are_known() -> None:
    parts = (
        "OPTIMUS_KUBERNETES__NODE_SELECTOR__zone",
        "OPTIMUS_LOCAL_GPUS__a100",
        "optimus_token",
        "PATH",
        "_OPTIMUS_X",
    )
    assert misspelled_variables(dict.fromkeys(parts, "1")) == []


def test_every_variable_of_our_programs_is_known() -> None:
    """A new variable of the command line or of tasks has to be named in the settings, or the service refuses it."""
    folders = ("cli", "client", "workers", "service", "benchmarks", "docker", "helm")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yaml", ".sh")
    ]
    names = {name for path in files for name in re.findall(r"\bOPTIMUS_[A-Z0-9_]*[A-Z0-9]\b", path.read_text())}
    assert len(names) > 20
    assert misspelled_variables(dict.fromkeys(names, "1")) == []


def test_rounds_are_for_the_objective_that_a_variable_names(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings().scheduling.objective == MEAN_JCT
    monkeypatch.setenv("OPTIMUS_OBJECTIVE", "jct:7,makespan:3")
    assert Settings().scheduling.objective == Objective(jct=0.7, makespan=0.3)
