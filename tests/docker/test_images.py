"""Images and the compose file, as far as they can be checked without an engine that builds and runs them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from optimus_service.settings import Settings

REPOSITORY = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((REPOSITORY / "docker").glob("*.Dockerfile"))
SECRETS = {
    "OPTIMUS_TOKEN": "t" * 16,
    "OPTIMUS_SECRET": "s" * 16,
    "POSTGRES_PASSWORD": "p",
}


def compose_command() -> list[str]:
    """Skips without one."""
    if given := os.environ.get("OPTIMUS_TEST_COMPOSE"):
        return [given]
    if (old := shutil.which("docker-compose")) is not None:
        return [old]
    docker = shutil.which("docker")
    if docker is not None and subprocess.run([docker, "compose", "version"], capture_output=True).returncode == 0:
        return [docker, "compose"]
    if os.environ.get("OPTIMUS_TEST_REQUIRE_COMPOSE") == "1":
        pytest.fail("OPTIMUS_TEST_REQUIRE_COMPOSE=1, but there is no docker compose")
    pytest.skip("no docker compose: install Docker's compose plugin, or set OPTIMUS_TEST_COMPOSE to the program")


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [*compose_command(), "--project-directory", str(REPOSITORY), *arguments]
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return subprocess.run(command, capture_output=True, text=True, env={**kept, **environment})


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_has_nothing_to_say(path: Path) -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([str(hadolint), str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_images_are_built_in_stages_and_run_as_nobody_special(path: Path) -> None:
    text = path.read_text()
    last = text.rsplit("\nFROM ", 1)[1]
    assert text.count("\nFROM ") == 2
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "HEALTHCHECK" in last
    assert not re.search(r"^(ADD|COPY) \. ", text, re.MULTILINE)
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", text, re.MULTILINE)
    allowed = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for source in " ".join(copied).split():
        for lock in ("worker", "server"):
            assert (REPOSITORY / source.replace("${LOCK}", lock)).exists(), source
            assert source.replace("${LOCK}", lock) in allowed, f"{source} is kept out by .dockerignore"


def test_the_images_have_no_more_than_they_need() -> None:
    service, worker = ((REPOSITORY / "docker" / f"{name}.Dockerfile").read_text() for name in ("service", "worker"))
    assert "ARG TORCH=\n" in service
    torch = (REPOSITORY / "constraints.txt").read_text().splitlines()[-1]
    assert f"ARG TORCH={torch}\n" in worker
    assert f"TORCH: {torch}\n" in (REPOSITORY / "docker-compose.yml").read_text()
    for package in ("optimus_service", "optimus_scheduler", "optimus_models", "optimus_simulator", "optimus_cli"):
        assert f'"$site"/{package}' in worker


@pytest.mark.parametrize("profile", ["workers", "control-plane"])
def test_compose_accepts_the_file(profile: str) -> None:
    done = compose("--profile", profile, "config", **SECRETS)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = yaml.safe_load(done.stdout)["services"]
    services = {"workers": "service-with-workers", "control-plane": "service"}
    assert set(found) == {"postgres", "migrations", "prometheus", "grafana", services[profile]}
    for each in found.values():
        for port in each.get("ports", ()):
            assert port["host_ip"] == "127.0.0.1"
        for volume in each.get("volumes", ()):
            assert volume["type"] == "volume" or Path(volume["source"]).exists(), volume


def test_compose_asks_for_its_secrets() -> None:
    for name in SECRETS:
        rest = {other: value for other, value in SECRETS.items() if other != name}
        done = compose("--profile", "workers", "config", **rest)
        assert done.returncode != 0
        assert f"set {name}" in done.stderr


def test_the_service_accepts_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    file = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    for service, cluster in (("service", "kubernetes"), ("service-with-workers", "local")):
        for name, value in file["services"][service]["environment"].items():
            text = re.sub(r"\$\{(\w+)(?::-([^}]*))?(?::\?[^}]*)?\}", lambda m: SECRETS.get(m[1]) or m[2] or "", value)
            monkeypatch.setenv(name, text)
        monkeypatch.setenv("OPTIMUS_CLUSTER", cluster)
        found = Settings()
        assert (found.host, found.cluster) == ("0.0.0.0", cluster)
        assert found.url.startswith("postgresql://optimus:p@postgres:5432/")


def test_prometheus_and_grafana_find_what_they_are_given() -> None:
    scraped = yaml.safe_load((REPOSITORY / "docker/prometheus/prometheus.yml").read_text())
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in scraped["scrape_configs"]}
    assert targets["optimus"] == ["service:8080"]
    (credentials,) = (job["authorization"] for job in scraped["scrape_configs"] if job["job_name"] == "optimus")
    compose_file = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    (secret,) = compose_file["services"]["prometheus"]["secrets"]
    assert credentials == {"credentials_file": f"/run/secrets/{secret}"}
    assert compose_file["secrets"][secret] == {"environment": "OPTIMUS_TOKEN"}
    provisioning = REPOSITORY / "docker/grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/prometheus.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((provisioning / "dashboards/optimus.yaml").read_text())["providers"]
    mounts = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())["services"]["grafana"]["volumes"]
    assert f"./helm/optimus/dashboards:{provider['options']['path']}:ro" in mounts
