"""Run schemathesis on the OpenAPI document of a real service, without a token and as each role: `make fuzz`.

    FUZZ_EXAMPLES  requests that are drawn at random for each operation, and sequences of requests, as each caller
                   (default 5); what the document itself names, such as examples and bounds, is tried before
    FUZZ_SEED      what the requests are drawn from (default 1)

Exit code 1 when an answer is not what the document says: a status, header or body that it does not name, a request
that it allows and the service refuses, one that it forbids and the service takes, a call that needs no token though
the document says so, a 5xx.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.service.postgres_cluster import PostgresCluster, PostgresMissing

from optimus_service.process.job_tokens import JobTokens
from optimus_service.store.database.engine import create_engine_from_url, upgrade
from optimus_service.store.repository import Repository

ROOT = Path(__file__).parents[3]
TOKEN, SECRET = "a token of the fuzzer", "a secret of the fuzzer"
N_JOBS = 24
"""Jobs whose tasks' calls are tried: half of them are never told a result, which would end them."""
N_SHORT_JOBS = 3
"""Of them, those that train to their end by themselves. The others leave the processor to the fuzzer."""
START_SECONDS = 120.0
"""A start takes two or three seconds; a machine under load gets more."""
ANSWER_SECONDS = 60.0
"""An answer takes milliseconds; a machine under load gets more."""


@contextmanager
def service(directory: Path, database_url: str, token: str | None) -> Iterator[str]:
    """`optimus serve` as users start it; its address."""
    given = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    ours = {"OPTIMUS_DATABASE_URL": database_url, "OPTIMUS_SECRET": SECRET, "OPTIMUS_STOP_TASKS": "true"}
    ours |= {} if token is None else {"OPTIMUS_TOKEN": token}
    command = [str(Path(sys.executable).parent / "optimus"), "serve", "--port", "0", "--slots", "2"]
    command += ["--data-directory", str(directory)]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, env=given | ours, stdout=log, stderr=subprocess.STDOUT)
    try:
        yield _address(directory, process)
        if process.poll() is not None:
            raise RuntimeError(f"the service ended with code {process.returncode}: {_end_of_log(directory)}")
    finally:
        process.terminate()
        process.wait(60.0)


def _address(directory: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if (directory / "service.json").exists():
            url = str(json.loads((directory / "service.json").read_text())["url"])
            if httpx.get(f"{url}/readyz", trust_env=False, timeout=ANSWER_SECONDS).is_success:
                return url
        time.sleep(0.1)
    raise RuntimeError(f"the service did not start: {_end_of_log(directory)}")


def _end_of_log(directory: Path) -> str:
    return (directory / "log").read_text(errors="replace")[-3000:]


def job_tokens(url: str, database_url: str, token: str | None) -> dict[str, str]:
    """Submit jobs. Their tokens, as the service would give them to the jobs' tasks."""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    short = {"task": "optimus_workers.zoo.digits:mlp", "convergence": {"max_steps": 20}}
    pace = {"task": "paced:mlp", "task_args": {"seconds_per_pass": 0.2}, "working_directory": str(ROOT / "tests/tasks")}
    long = {**pace, "convergence": {"max_epochs": 100_000}}
    issue = JobTokens(SECRET.encode()).issue
    repository = Repository(create_engine_from_url(database_url))
    try:
        tokens = {}
        with httpx.Client(base_url=url, headers=headers, trust_env=False, timeout=ANSWER_SECONDS) as client:
            for number in range(N_JOBS):
                spec = short if number < N_SHORT_JOBS else long
                answer = client.post("/v1/jobs", json={**spec, "name": f"fuzzed-{number}"}).raise_for_status()
                job_id = answer.json()["id"]
                tokens[job_id] = issue(job_id, repository.jobs.get(job_id).token_nonce)
        return tokens
    finally:
        repository.close()


ROLES: Mapping[str, Mapping[str, object]] = {
    "operator": {"role": "operator"},
    "member": {"projects": {"default": "member"}, "limits": {"requests_per_second": 1e6}},
    "viewer": {"projects": {"default": "viewer"}, "limits": {"requests_per_second": 1e6}},
}
"""Users, who may call as often as they like."""


def token_of_role(url: str, role: str) -> str:
    """A token of a new user with the role. It is made when it is needed: who came before may have taken others back."""
    with httpx.Client(
        base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=ANSWER_SECONDS
    ) as client:
        client.post(f"/v1/users/fuzz-{role}", json=ROLES[role]).raise_for_status()
        made = client.post("/v1/tokens", json={"user": f"fuzz-{role}", "scope": "operate"}).raise_for_status()
    return str(made.json()["secret"])


def run(url: str, known: Mapping[str, object], directory: Path, phases: str, options: Sequence[str]) -> int:
    """Run these phases of schemathesis; its exit code."""
    file = directory / "known.json"
    file.write_text(json.dumps(known))
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": "tests.service.fuzz.hooks", "OPTIMUS_FUZZ": str(file)}
    headers = {} if known["token"] is None else {"Authorization": f"Bearer {known['token']}"}
    document = directory / "openapi.json"
    answer = httpx.get(f"{url}/openapi.json", headers=headers, trust_env=False, timeout=ANSWER_SECONDS)
    document.write_text(answer.raise_for_status().text)
    program = os.environ.get("FUZZ_SCHEMATHESIS", "schemathesis")
    command = [program, "--config-file", str(ROOT / "tests/service/fuzz/schemathesis.toml"), "run", str(document)]
    command += ["--url", url, "--phases", phases, *options]
    return subprocess.run(command, cwd=ROOT, env=environment | {"PYTHONPATH": str(ROOT)}, check=False).returncode


@contextmanager
def postgres() -> Iterator[str | None]:
    """The URL of an empty database; None without PostgreSQL."""
    try:
        cluster = PostgresCluster()
    except PostgresMissing:
        yield None
        return
    try:
        yield cluster.url(cluster.create_database())
    finally:
        cluster.close()


def fuzz(database_url: str | None, token: str | None, examples: int, seed: int) -> int:
    """Compare one service with its document. SQLite when there is no `database_url`.

    What the document itself names is only tried with the administrator's token: nothing in it depends on who asks, or
    on the database. What is drawn is tried as each role as well, each with another seed.
    """
    directory = Path(tempfile.mkdtemp(prefix="optimus-fuzz-"))
    url_of_database = database_url or f"sqlite:///{directory / 'optimus.db'}"
    named = ["--seed", str(seed)]
    try:
        if database_url is not None:
            upgrade(database_url)
        print(f"fuzz: {url_of_database.partition(':')[0]}, {'no ' if token is None else 'a '}token", flush=True)  # noqa: T201 - a program
        with service(directory, url_of_database, token) as url:
            known = {"token": token, "jobs": job_tokens(url, url_of_database, token)}
            code = 0 if token is None else run(url, known, directory, "examples,coverage", named)
            for number, role in enumerate(["administrator", *([] if token is None else ROLES)]):
                secret = token_of_role(url, role) if role in ROLES else token
                print(f"fuzz: as {role}", flush=True)  # noqa: T201 - a program
                drawn = ["--seed", str(seed + number), "--max-examples", str(examples)]
                code = max(code, run(url, {**known, "token": secret}, directory, "fuzzing,stateful", drawn))
            return code
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    """Without a token on SQLite, with one on PostgreSQL where that is installed; the worse exit code."""
    examples = int(os.environ.get("FUZZ_EXAMPLES", "5"))
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    without = fuzz(None, None, examples, seed)
    with postgres() as database_url:
        return max(without, fuzz(database_url, TOKEN, examples, seed))


if __name__ == "__main__":
    sys.exit(main())
