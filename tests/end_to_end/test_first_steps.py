"""The first minutes of a user: the README's block as it stands, the service in the background, mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.end_to_end.harness import TASKS, wait_until

from optimus_cli import background
from optimus_workers.wire.ports import reserve_port

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
SECONDS = 240.0
"""Twice as long as `serve --detach` waits at most."""
BLOCK_SECONDS = 840.0
"""For the README's block, which trains a job to its end: half a minute, and many times that on a busy machine."""


class Shell:
    """A user's shell in an empty directory, with the `optimus` of this interpreter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = reserve_port("127.0.0.1")
        ours = {"OPTIMUS_PORT": str(self.port), "OPTIMUS_URL": f"http://127.0.0.1:{self.port}"}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
        path = f"{Path(sys.executable).parent}:{kept['PATH']}"
        self.environment = {**kept, **ours, "PATH": path, "MPLBACKEND": "agg"}

    def __call__(self, command: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
        """Run it to its end, `seconds` at most.

        What it leaves in the background must not keep its output open, or this waits.
        """
        return subprocess.run(
            ["bash", "-ec", command],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )

    def get(self, path: str, **params: Any) -> Any:
        """What its service answers: for what a test waits for, since a command takes seconds on a busy machine."""
        # No certificates, which would be read for each question.
        url = self.environment["OPTIMUS_URL"] + path
        answer = httpx.get(url, params=params, timeout=60.0, trust_env=False, verify=False)
        assert answer.is_success, answer.text
        return answer.json()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found("optimus stop --tasks")


def readme_block() -> str:
    """The commands of the README's section "Use it"."""
    section = (ROOT / "README.md").read_text().partition("\n## Use it\n")[2]
    block = re.search(r"```\n(.*?)```", section, re.DOTALL)
    assert block is not None
    return block[1]


README_SENTENCES = (
    r"The service runs at http://127\.0\.0\.1:\d+ \(process \d+, log \S+service\.log\)\.",
    r"Stop it: optimus stop --data-directory \S+ \[--tasks\]",
    r"digits-mlp: succeeded 100 %, step [\d ]+ loss \S+ test_accuracy 0\.9\d* test_loss \S+, took",
    r"Because The job succeeded(: its loss hardly fell any more|: it made all the epochs of its limit)?\.",
    r"It took [\d a-z]+ from submission to end, [\d a-z]+ of it before it started, and ended at step \d+\. It last had",
    r"Again `optimus retry digits-mlp-\w{5}` runs it again from the beginning\.",
    r"What was predicted, and what came",
    r"The service at http://127\.0\.0\.1:\d+ has stopped\. No task is left\.",
)
"""What the block says, in its order, as regular expressions."""


def processes_in(directory: Path) -> list[int]:
    """Those that were started there."""
    found = []
    for entry in Path("/proc").glob("[1-9]*"):
        with suppress(OSError):  # it has ended, or is another user's
            if (entry / "cwd").samefile(directory):
                found.append(int(entry.name))
    return found


def _minds_interruptions() -> None:
    """As in a terminal: what a script runs in the background inherits that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("interruption", [signal.SIGINT, signal.SIGTERM])
def test_a_start_that_is_interrupted_leaves_no_service_that_comes_up_later(
    tmp_path: Path, interruption: signal.Signals
) -> None:
    command = [sys.executable, "-m", "optimus_cli", "serve", "--detach"]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "preexec_fn": _minds_interruptions}
    with subprocess.Popen(command, cwd=tmp_path, env=Shell(tmp_path).environment, **silent) as starting:  # type: ignore[call-overload]
        wait_until("the service's process has begun", lambda: len(processes_in(tmp_path)) > 1)
        starting.send_signal(interruption)
        assert starting.wait(SECONDS) != 0
    wait_until("that has ended, too", lambda: not processes_in(tmp_path))


@pytest.mark.timeout(900)
def test_the_readmes_block_works_when_it_is_pasted(shell: Shell) -> None:
    shutil.copytree(ROOT / "examples", shell.directory / "examples")
    (shell.directory / ".venv" / "bin").mkdir(parents=True)
    activate = shell.directory / ".venv" / "bin" / "activate"
    activate.write_text("")  # the shell has the test's own interpreter already
    done = shell(readme_block(), BLOCK_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    said = " ".join(done.stdout.split())
    for sentence in README_SENTENCES:
        assert re.search(sentence, said), sentence
    assert (shell.directory / "prediction.png").stat().st_size > 0
    assert background.find(shell.directory / "optimus-data") is None, "the block ends with what stops everything"
    assert shell("optimus list").returncode == 1


LOOP = """
import time
for epoch in range(1000):
    print(f"epoch {epoch + 1}/1000 loss {1 / (epoch + 1)}", flush=True)
    time.sleep(0.5)
"""


def test_a_service_in_the_background_is_ready_told_and_stopped(shell: Shell) -> None:
    started = shell("optimus serve --detach")
    assert started.returncode == 0, started.stderr
    assert f"http://127.0.0.1:{shell.port}" in started.stdout
    assert "service.log" in started.stdout
    assert "optimus stop" in started.stdout
    assert shell("optimus list --json").returncode == 0
    again = shell("optimus serve --detach")
    assert again.returncode == 2
    assert "another service is running on the data directory" in again.stderr
    assert f"http://127.0.0.1:{shell.port}" in again.stderr
    elsewhere = shell("optimus serve --detach --data-directory other")
    assert elsewhere.returncode == 2
    assert f"cannot listen on 127.0.0.1 port {shell.port}" in elsewhere.stderr
    assert "--port" in elsewhere.stderr
    assert "Traceback" not in again.stderr + elsewhere.stderr
    for what in ("stop", "stop --tasks --yes"):
        other = shell(f"OPTIMUS_DATA_DIRECTORY=other optimus {what}")
        assert other.returncode == 1
        assert f"the one at http://127.0.0.1:{shell.port} uses another data directory" in " ".join(other.stderr.split())
    (shell.directory / "loop.py").write_text(LOOP)
    assert shell("optimus submit --name loop -- python loop.py").returncode == 0
    wait_until("it has work to lose", lambda: shell.get("/v1/jobs")["jobs"][0].get("lost_by_a_stop"))
    refused = shell("optimus stop --tasks < /dev/null")
    assert refused.returncode == 1
    assert re.search(
        r"End all tasks\? Not known to go on from a checkpoint: loop-\S+ loses .*(of work|steps?)", refused.stderr
    )
    stopped = shell("optimus stop")
    assert stopped.returncode == 0, stopped.stderr
    assert "has stopped" in stopped.stdout
    assert "2 training tasks go on" in stopped.stdout
    refused = shell("optimus stop --tasks < /dev/null")
    assert refused.returncode == 1
    assert "End 2 training tasks? What that loses only the service knows" in refused.stderr
    assert "2 training tasks have ended. No task is left." in shell("optimus stop --tasks --yes").stdout
    assert "No task is left" in shell("optimus stop --tasks < /dev/null").stdout
    assert "No service runs" in shell("optimus stop").stdout
    assert shell("optimus stop --data-directory nowhere").returncode == 2
    at_once = shell("optimus serve > serve.log 2>&1 & optimus stop")
    assert "has stopped" in at_once.stdout, "one that has only begun is waited for"


def test_a_service_that_cannot_start_says_why(shell: Shell) -> None:
    (shell.directory / "optimus-data").mkdir()
    (shell.directory / "optimus-data" / "optimus.db").write_text("this is no database, " * 100)
    done = shell("optimus serve --detach")
    assert done.returncode == 2
    assert "not a database" in done.stderr
    assert "Traceback" not in done.stderr


def test_commands_wait_for_a_service_that_is_starting(shell: Shell) -> None:
    done = shell("optimus serve > serve.txt 2>&1 & optimus list --json; optimus stop")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.rpartition("}")[0] + "}") == {"jobs": [], "more": False}


ENDED = (
    r"It took [\d a-z]+ from submission to end, [\d a-z]+ of it before it started"
    r"(, and (ended at step|the last step that it told was) \d+)?\. "
    r"It last had .*\. Its size was .*; "
    r"((until then )?no change of size, lost task, pause or error stopped|changes of size, .* and errors stopped) "
    r"its training.*\."
    r"( \d+ steps? (was|were) made again\.)?"
)
"""The last sentence about a job that has ended."""
AS_IT_WAS = r" Its specification stays what it was: what is wrong in that takes a new submission\."
ANEW = rf"Nothing: it has ended\. `optimus retry \S+` runs it again from the beginning\.({AS_IT_WAS})?"
HUNG = (
    r"{job}-worker-0-0 hung: it got no further for longer than the 3 s that `hang_seconds` allows; "
    r"its log shows where\. Hangs within 60 min: 1; at 2 the job fails\."
)
HANGS = (
    r"(Starts with|Keeps) 1 worker and 1 server.*",
    rf"(\d+ s ago: )?{HUNG}",
    r"(A worker is being replaced; i|I)ts workers hung once, (after steps? [\d to]+|before a step was made)\.",
    r"A worker is being replaced\.|No step came for .*, where one took .*\.",
    r"If its code hangs( again)?, the worker is replaced after 3 s; `optimus logs {job}` .* `optimus cancel {job}` .*",
    r"Its next task would gain .*|One more (task|worker|server) would .*",
    r"If its training goes on, it is expected to end in about .*",
    r"At the size that it has(, (without waiting and stops|by (its newest|the) speed.*),)? it would take .*\.",
    r"When it ends cannot be said (yet: |before it (goes on|has passed step|makes a step)|while no step comes).*",
    r"When it ends is told by the next look at the queue: at the last one nothing told whether it goes on\.",
    r"It has waited for .*",
    r"In the queue it is now number 1 of 1\.",
    r"(It is expected to|When it will) (start|go on) .*",
)
"""All that may be said of a job that has hung once."""


def explained(shell: Shell, job: str) -> tuple[str, list[str], str]:
    """The state, each sentence, and what would change it, as `optimus explain` tells them."""
    found = json.loads(shell(f"optimus explain {job} --json").stdout)
    return found["state"], found["sentences"], found["what_would_change_it"]


def test_a_first_day_of_own_code_a_nan_and_a_hang(shell: Shell) -> None:
    for source in (ROOT / "examples" / "my_training.py", TASKS / "trouble.py"):
        shutil.copy(source, shell.directory)
    settings = "OPTIMUS_SLOTS=4 OPTIMUS_ROUND_SECONDS=1 OPTIMUS_MAX_TASK_FAILURES=2"
    assert shell(f"{settings} optimus serve --detach").returncode == 0
    slip = shell("optimus submit --task my_trainin:task")
    assert slip.returncode == 2
    assert "there is no module 'my_trainin'; did you mean my_training?" in slip.stderr

    own = shell("optimus submit --task my_training:task --max-epochs 2 --watch", BLOCK_SECONDS)
    assert own.returncode == 0, own.stderr
    assert re.search(r"\] my-training: succeeded 100 %, step 1\d  loss \S+  test_loss \S+, took ", own.stdout)
    assert_told(
        explained(shell, "my-training"),
        "succeeded",
        (r"The job succeeded: it made all the epochs of its limit\.", ENDED),
        ANEW,
    )

    endless = "--max-epochs 100000 --retries 0"
    nan = shell(f"optimus submit --task trouble:diverges --name nan {endless}").stdout.strip()
    hang = shell(f"optimus submit --task trouble:hangs --name hang --hang-seconds 3 {endless}").stdout.strip()
    hung = re.compile(HUNG.format(job=hang))

    def while_it_hangs() -> list[str]:
        told: list[str] = shell.get(f"/v1/jobs/{hang}/explanation")["sentences"]
        return told if any(map(hung.search, told)) else []

    def have_ended() -> bool:
        return all(shell.get(f"/v1/jobs/{job}")["finished_at"] for job in (nan, hang))

    for sentence in wait_until("the hang is told", while_it_hangs, SECONDS):
        assert any(re.fullmatch(each.format(job=hang), sentence) for each in HANGS), sentence
    wait_until("both have ended", have_ended, SECONDS)
    assert events_of(shell, nan, "LossNotFinite")
    assert hung.fullmatch(events_of(shell, hang, "WorkerHung")[0])
    assert all(shell.get(f"/v1/jobs/{job}")["progress"] != 1.0 for job in (nan, hang))
    why = (
        r"The job failed: the loss was NaN or infinite by step \d+, and for 20 steps or more: "
        r"a smaller learning rate often helps; `on_nonfinite: warn` would have let it train on"
    )
    goes_on = (
        r"Nothing: it has ended\. Submit it again with what made its loss NaN or infinite changed, often a smaller "
        r"learning rate \(an argument of its task with `--set NAME=VALUE`\)\. "
        rf"(`optimus resume {nan}` lets the same go on from its last checkpoint, .*, and `optimus submit --from {nan}` "
        r"starts another with the parameters of that: of use only if its loss was a number there\. )?"
        rf"`optimus retry {nan}` runs the same again from the beginning\."
    )
    assert_told(explained(shell, nan), "failed", (why, ENDED), goes_on)
    why = (
        r"The job failed: its workers hung 2 times within 60 min, the last time \S+-worker-0-1: it got no further "
        r'for longer than the 3 s that `hang_seconds` allows; the end of its log: File "trouble\.py", line \d+ in loss'
    )
    assert_told(explained(shell, hang), "failed", (why, ENDED), ANEW)


def events_of(shell: Shell, job: str, kind: str) -> list[str]:
    """The messages of the job's events of one type, oldest first."""
    events = shell.get(f"/v1/jobs/{job}/events", limit=200)["events"]
    return [event["message"] for event in reversed(events) if event["type"] == kind]


def assert_told(found: tuple[str, list[str], str], state: str, sentences: tuple[str, ...], change: str) -> None:
    """The state, and each sentence by its regular expression: nothing else is said."""
    assert found[0] == state, found
    assert len(found[1]) == len(sentences), found
    for said, wanted in zip(found[1], sentences, strict=True):
        assert re.fullmatch(wanted, said), said
    assert re.fullmatch(change, found[2]), found


MISTAKES = {
    "--set widht=3": "Error: --set: got an unexpected keyword argument 'widht'; did you mean width?",
    "--batch-size 100000": "Error: --batch-size: is 100000 and the data has 1437 examples only",
    "--checkpoint-url no-such-store://x/y": "Error: --checkpoint-url: checkpoints cannot be kept there",
    "--workers-min 64 --workers-max 64": "Error: --workers-min: at least 64 asked for; the whole cluster has room for",
    "--priority nan": "--priority",
    "--worker-cpu 0": "--worker-cpu",
}
"""What a new user types wrongly, and how the answer begins or what it names."""


def test_a_first_day_of_mistakes_a_full_cluster_and_a_quota(shell: Shell) -> None:
    shutil.copy(TASKS / "paced.py", shell.directory)  # what trains takes no time from the commands
    assert shell("OPTIMUS_SLOTS=4 OPTIMUS_ROUND_SECONDS=1 optimus serve --detach").returncode == 0
    for flags, told in MISTAKES.items():
        wrong = shell(f"optimus submit --task optimus_workers.zoo.digits:mlp {flags}")
        assert wrong.returncode == 2, flags
        assert told in wrong.stderr
        assert "Traceback" not in wrong.stderr
    assert json.loads(shell("optimus list --json").stdout) == {"jobs": [], "more": False}
    assert shell("optimus project set small --cpu 2 --no-borrow").returncode == 0
    submit = "optimus submit --task paced:mlp --set seconds_per_pass=0.1 --max-epochs 100000"
    first = shell(f"{submit} --name first --project small --workers-max 3").stdout.strip()
    second = shell(f"{submit} --name second --project small").stdout.strip()

    def decided(job: str, reason: str) -> bool:
        return bool(shell.get(f"/v1/jobs/{job}/explanation")["reason"] == reason)

    wait_until("the second waits", lambda: decided(second, "WaitingForQuota"))
    why = json.loads(shell(f"optimus explain {second} --json").stdout)
    told = "Waits: quotas leave no room now for 1 worker and 1 server of project small."
    used_up = "Its project may not borrow, and its other jobs leave too little for it: its quota is 2 cores."
    assert why["message"] == f"{told} {used_up}"
    assert why["expected"]["start_seconds"] != {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert "leave to borrow for project small" in why["what_would_change_it"]
    assert f"the end of first ({first})" in why["what_would_change_it"]
    big = shell(f"{submit} --name big --workers-min 3 --workers-max 3").stdout.strip()
    # Once the first trains, it would keep its tasks without the quota, too.
    wait_until("the third waits for room", lambda: decided(big, "WaitingForResources"))
    why = json.loads(shell(f"optimus explain {big} --json").stdout)
    told = "Waits: there is no room for 3 workers and 1 server beside jobs that train or go first."
    assert why["message"] == told
    assert "`workers.min` of 1 (now 3)" in why["what_would_change_it"]
    assert shell(f"optimus cancel {first}").returncode == 0
    wait_until("it has ended", lambda: shell.get(f"/v1/jobs/{first}")["state"] == "cancelled")
    told = json.loads(shell(f"optimus explain {first} --json").stdout)
    assert (told["reason"], told["message"]) == (None, "The job was cancelled.")
