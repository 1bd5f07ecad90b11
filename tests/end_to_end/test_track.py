"""A training that its owner runs, watched: by the command line and by `optimus_client.track`."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.end_to_end.harness import wait_until
from tests.end_to_end.test_first_steps import Shell, shell  # noqa: F401 - a fixture

pytestmark = [pytest.mark.end_to_end, pytest.mark.timeout(600)]
SCRIPTS = Path(__file__).parents[1] / "scripts"
LOOP = """
import sys, time
steps, seconds = int(sys.argv[1]), float(sys.argv[2])
for step in range(1, steps + 1):
    time.sleep(seconds)
    print(f"step {step}/{steps} loss {0.5 + 2 / step:.4f}")
print("written to stderr", file=sys.stderr)
sys.exit(int(sys.argv[3]) if len(sys.argv) > 3 else 0)
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """One service for all tests here: each has a job of its own name."""
    found = Shell(tmp_path_factory.mktemp("served"))
    (found.directory / "loop.py").write_text(LOOP)
    started = found("optimus serve --detach --slots 2")
    assert started.returncode == 0, started.stderr
    yield found
    found("optimus stop --tasks")


def job(of: Shell, name: str) -> dict[str, object]:
    done = of(f"optimus describe {name} --json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_a_command_runs_as_it_would_and_is_shown_like_a_job(served: Shell) -> None:
    done = served("optimus track --name watched --workers 3 -- python3 loop.py 60 0.05")
    assert done.returncode == 0, done.stderr
    plain = served("python3 loop.py 60 0.05")
    assert done.stdout == plain.stdout, "what the command prints is what is printed"
    assert "written to stderr" in done.stderr
    assert "Traceback" not in done.stderr
    found = job(served, "watched")
    assert (found["state"], found["step"], found["rescales"]) == ("succeeded", 60, 0)
    profile = found["profile"]
    assert isinstance(profile, dict)
    assert (profile["total_steps"], profile["learned_from"]) == (60, "printed")
    shown = served("optimus describe watched").stdout
    assert "python3 loop.py 60" in shown
    assert "outside the cluster" in shown
    assert "None" not in shown


@pytest.mark.parametrize("before", ["", "\\r"])
def test_the_last_line_needs_no_end(served: Shell, before: str) -> None:
    name = f"unended-{len(before)}"
    line = f"print('{before}step 20/20 loss 0.05', end='')"
    assert served(f'optimus track --name {name} -- python3 -c "{line}"').returncode == 0
    assert (job(served, name)["state"], job(served, name)["step"]) == ("succeeded", 20)


def test_its_end_is_predicted_while_it_runs(served: Shell) -> None:
    run = subprocess.Popen(
        ["optimus", "track", "--name", "long", "--", "python3", "loop.py", "6000", "0.1"],
        cwd=served.directory,
        env=served.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )

    def after(step: int) -> dict[str, object]:
        """The job when it is beyond `step` and its end is predicted."""

        def reached() -> dict[str, object] | None:
            found: dict[str, object]
            for found in served.get("/v1/jobs", name="long")["jobs"]:
                if int(str(found["step"])) > step and found["remaining_seconds"] is not None:
                    return found
            return None

        found: dict[str, object] = wait_until(f"it is beyond step {step} and its end is predicted", reached)
        return found

    try:
        first, begun = int(str(after(20)["step"])), time.monotonic()
        found = after(first + 60)
        left, step = found["remaining_seconds"], int(str(found["step"]))
        seconds_per_step = (time.monotonic() - begun) / (step - first)  # 0.1 s, and more on a busy machine
        assert isinstance(left, dict)
        assert left["mean"] == pytest.approx(seconds_per_step * (6000 - step), rel=0.5)
        assert "watched, not scheduled" in served("optimus explain long").stdout
        assert served("optimus cancel long").returncode == 0
        assert run.poll() is None, "watching ends, the training goes on"
    finally:
        run.send_signal(signal.SIGTERM)
        code = run.wait(30.0)
    assert code == 128 + signal.SIGTERM, "the command's own end"
    assert job(served, "long")["state"] == "cancelled"


def test_a_command_that_fails_fails_as_it_would(served: Shell) -> None:
    done = served("optimus track --name broken -- python3 loop.py 3 0.01 7")
    assert done.returncode == 7
    found = job(served, "broken")
    assert found["state"] == "failed"
    assert "exit code 7" in str(found["failure"])
    assert "written to stderr" in str(found["failure"])


def test_without_a_service_the_command_runs_all_the_same(shell: Shell) -> None:  # noqa: F811 - the fixture
    (shell.directory / "loop.py").write_text(LOOP)
    done = shell("optimus track -- python3 loop.py 5 0.01 4")
    assert done.returncode == 4
    assert done.stdout.count("step") == 5
    assert "the service does not answer yet" in done.stderr
    assert "the run was not tracked" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_service_that_comes_later_is_told_what_it_missed(shell: Shell) -> None:  # noqa: F811 - the fixture
    (shell.directory / "loop.py").write_text(LOOP)
    started = "optimus serve --detach --slots 2 >&2"
    done = shell(f"(sleep 1; {started}) & optimus track --name late -- python3 loop.py 200 0.1; wait")
    assert done.returncode == 0, done.stderr
    found = job(shell, "late")
    assert (found["state"], found["step"], found["first_step"]) == ("succeeded", 200, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "Give a command after --"),
        ("-- nosuchprogram", "nosuchprogram is not a program"),
        ("--progress-pattern '(' -- true", "is not a regular expression"),
        ("--workers 0 -- true", "--workers"),
        ("--url nowhere -- true", "is not an address"),
    ],
)
def test_mistakes_are_told_before_anything_runs(shell: Shell, arguments: str, said: str) -> None:  # noqa: F811
    done = shell(f"optimus track {arguments}")
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_name_that_the_service_refuses_is_told_and_the_command_runs(served: Shell) -> None:
    done = served("optimus track --name 'Not A Name' -- echo done")
    assert done.returncode == 0
    assert done.stdout == "done\n"
    assert "the run is not tracked" in done.stderr
    assert "name" in done.stderr


def test_a_stock_launcher_keeps_its_processes(served: Shell) -> None:
    shutil.copy(SCRIPTS / "ddp_train.py", served.directory / "train.py")
    command = "torchrun --nproc-per-node 2 train.py --steps 30 --step-seconds 0.05 --snapshot s.pt"
    done = served(f"optimus track -- {command}")
    assert done.returncode == 0, done.stderr
    found = job(served, "train")
    assert (found["state"], found["step"]) == ("succeeded", 30)
    allocations = json.loads(served("optimus describe train --json").stdout)
    assert allocations["spec"]["workers"]["min"] == 2


def test_a_notebook_or_script_tracks_itself(served: Shell) -> None:
    script = textwrap.dedent(
        """
        import sys, time
        import optimus_client

        with optimus_client.track("own", total_steps=50) as run:
            for step in range(1, 51):
                time.sleep(0.03)
                optimus_client.report(step=step, loss=0.5 + 2 / step, epoch=step / 10, metrics={"accuracy": 0.9})
                if step == 30 and "--fail" in sys.argv:
                    raise ValueError("the data are gone")
        print(run.job_id)
        """
    )
    (served.directory / "own.py").write_text(script)
    done = served("python3 own.py")
    assert done.returncode == 0, done.stderr
    found = job(served, done.stdout.strip())
    assert (found["state"], found["step"]) == ("succeeded", 50)
    profile, result = found["profile"], found["result"]
    assert isinstance(profile, dict)
    assert isinstance(result, dict)
    assert (profile["total_steps"], profile["learned_from"]) == (50, "client")
    assert profile["steps_per_epoch"] == pytest.approx(10)
    assert result["metrics"] == {"accuracy": 0.9}
    assert served("python3 own.py --fail").returncode == 1
    failed = json.loads(served("optimus list --json --state failed --name own").stdout)["jobs"]
    assert [each["name"] for each in failed] == ["own"]
    assert "the data are gone" in failed[0]["failure"]


def test_a_script_that_tells_after_how_many_epochs_it_ends_tells_after_how_many_steps(served: Shell) -> None:
    script = textwrap.dedent(
        """
        import optimus_client

        with optimus_client.track("epochs") as run:
            optimus_client.report(total_epochs=5)
            for step in range(1, 24):
                optimus_client.report(step=step, loss=0.5 + 2 / step, epoch=round(step / 30, 2))
                optimus_client.flush(5.0)
        print(run.job_id)
        """
    )
    (served.directory / "epochs.py").write_text(script)
    done = served("python3 epochs.py")
    assert done.returncode == 0, done.stderr
    profile = job(served, done.stdout.strip())["profile"]
    assert isinstance(profile, dict)
    assert profile["total_steps"] == pytest.approx(150, rel=0.01), "30 steps an epoch, told with two decimals"


@pytest.mark.parametrize(("code", "state"), [("", "succeeded"), ("0", "succeeded"), ("3", "failed")])
def test_a_script_that_leaves_the_block_by_its_exit_code_ends_as_that_says(
    served: Shell, code: str, state: str
) -> None:
    name = f"leaves-{state}-{code or 'plainly'}"
    script = f"import optimus_client, sys\nwith optimus_client.track('{name}'):\n    optimus_client.report(step=1)\n"
    (served.directory / "leaves.py").write_text(f"{script}    sys.exit({code})\n")
    assert served("python3 leaves.py").returncode == int(code or 0)
    assert job(served, name)["state"] == state


def test_a_script_that_tracks_itself_runs_without_a_service(shell: Shell) -> None:  # noqa: F811 - the fixture
    script = (
        "import optimus_client\nwith optimus_client.track('own'):\n    optimus_client.report(step=1)\nprint('done')\n"
    )
    (shell.directory / "own.py").write_text(script)
    done = shell("python3 own.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "done\n"


def test_trainings_are_watched_by_variables_alone(served: Shell) -> None:
    """Stock transformers, MLflow's client and OpenTelemetry's exporter, told the service's address and nothing else."""
    shutil.copy(SCRIPTS / "hf_trainer.py", served.directory / "hf_trainer.py")
    (served.directory / "token").write_text("any: this service has none")
    address = served.environment["OPTIMUS_URL"]
    kubeflow = f"KUBEFLOW_TRAINER_SERVER_URL={address}/v1/track/tiny-gpt KUBEFLOW_TRAINER_SERVER_TOKEN=token"
    done = served(f"{kubeflow} python3 hf_trainer.py --output-dir out --steps 30 --step-seconds 0.3")
    assert done.returncode == 0, done.stderr
    found = job(served, "tiny-gpt")
    profile = found["profile"]
    assert isinstance(profile, dict)
    assert (found["state"], found["step"]) == ("succeeded", 30)
    assert (profile["total_steps"], profile["learned_from"]) == (30, "kubeflow")

    (served.directory / "logs.py").write_text(textwrap.dedent(LOGS))
    otlp = f"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT={address}/v1/track/measured"
    done = served(f"MLFLOW_TRACKING_URI={address} {otlp} python3 logs.py")
    assert done.returncode == 0, done.stderr
    found = job(served, "translation")
    profile, result = found["profile"], found["result"]
    assert isinstance(profile, dict)
    assert isinstance(result, dict)
    assert (found["state"], found["step"]) == ("succeeded", 40)
    assert (profile["total_steps"], profile["learned_from"]) == (40, "mlflow")
    assert result["metrics"] == {"val_loss": 0.6}
    assert [path.read_text() for path in served.directory.glob("mlruns/**/note.txt")] == ["kept here"]
    failed = json.loads(served("optimus list --json --state failed --name fails").stdout)["jobs"]
    assert [each["failure"] for each in failed] == ["its MLflow client says that it failed"]
    assert (job(served, "measured")["state"], job(served, "measured")["step"]) == ("running", 12)


LOGS = """
    import mlflow
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

    mlflow.set_experiment("Translation")
    with mlflow.start_run():
        mlflow.log_params({"lr": 0.1, "max_steps": 40})
        for step in range(1, 41):
            mlflow.log_metric("lr", 0.1, step=step)
            mlflow.log_metric("train_loss", 0.5 + 2 / step, step=step)
        mlflow.log_metrics({"val_loss": 0.6}, step=40)
        mlflow.log_text("kept here", "note.txt")
        mlflow.set_tag("who", "me")
    mlflow.set_experiment("fails")
    try:
        with mlflow.start_run():
            mlflow.log_metric("train_loss", 0.5, step=1)
            raise ValueError("the data are gone")
    except ValueError:
        pass
    provider = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=1e9)])
    meter = provider.get_meter("training")
    meter.create_gauge("training.step").set(12)
    meter.create_gauge("training.loss").set(0.5)
    provider.shutdown()
"""
