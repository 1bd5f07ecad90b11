"""`optimus serve` runs the service, in the foreground or (--detach) in the background; `optimus stop` ends it;
`optimus db` creates and updates its tables."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer

from optimus_cli import background, output
from optimus_cli.commands.changes import lost_by_stops
from optimus_cli.configuration import load_settings, service_is_missing
from optimus_cli.errors import BadInput, CliError
from optimus_cli.job.specification import parse_assignments
from optimus_cli.options import AsJson, Command, Group, Yes, answering, ask, connect


# Long, because typer wants a parameter per flag; it only says which flag sets which setting.
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on, 127.0.0.1 by default; beyond loopback set OPTIMUS_TOKEN.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="8080 by default; 0: any free port.")] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(resolve_path=True, metavar="FILE", help="Certificate with its chain (PEM): serve https."),
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(resolve_path=True, metavar="FILE", help="Its private key (PEM, no password).")
    ] = None,
    data_directory: Annotated[
        Path | None,
        typer.Option(resolve_path=True, help="Database (SQLite), job directories, logs; by default optimus-data."),
    ] = None,
    database_url: Annotated[str | None, typer.Option(help="Default: SQLite in the data directory.")] = None,
    service_url: Annotated[
        str | None, typer.Option(help="How tasks reach the service; by default the address it listens on.")
    ] = None,
    policy: Annotated[str | None, typer.Option(help="Scheduling policy, optimus by default.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            metavar="GOAL[:PART,...]",
            help="What it is for: jct (default), makespan, deadlines, fairness, or a mix: jct:0.7,makespan:0.3.",
        ),
    ] = None,
    round_seconds: Annotated[float | None, typer.Option(help="Period of scheduling rounds, 60 by default.")] = None,
    learning_round_seconds: Annotated[
        float | None, typer.Option(help="... while a speed is being learned, 10 by default.")
    ] = None,
    debounce_seconds: Annotated[
        float | None, typer.Option(help="Events this close share one round; 0.5 by default.")
    ] = None,
    slots: Annotated[int | None, typer.Option(help="CPU slots of the local cluster; by default one per core.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes that the slots are spread over, 1 by default.")] = None,
    memory_bytes: Annotated[
        int | None, typer.Option(help="Memory of the local cluster; by default the machine's.")
    ] = None,
    local_gpus: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TYPE=COUNT", help="GPUs of this machine, such as h100=1; repeatable, in the order of nvidia-smi."
        ),
    ] = None,
    python: Annotated[
        Path | None, typer.Option(help="Interpreter that runs tasks; by default the service's own.")
    ] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="Time that an unwanted task has to leave, 20 by default.")
    ] = None,
    max_task_failures: Annotated[
        int | None, typer.Option(help="Crashes without progress that fail a job, 6 by default.")
    ] = None,
    price_per_core_hour: Annotated[
        float | None, typer.Option(help="Price of a CPU core for an hour, 0 by default.")
    ] = None,
    price_per_gpu_hour: Annotated[
        list[str] | None, typer.Option(metavar="TYPE=PRICE", help="Price of a GPU for an hour; repeatable.")
    ] = None,
    learn_from_finished_jobs: Annotated[
        bool | None,
        typer.Option(
            "--learn-from-finished-jobs/--learn-nothing", help="Whether earlier jobs of the same task are used."
        ),
    ] = None,
    stop_tasks: Annotated[
        bool | None, typer.Option("--stop-tasks/--leave-tasks", help="What becomes of tasks when it stops.")
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Return when it is ready; it goes on until `optimus stop`.")
    ] = False,
    log_format: Annotated[Literal["console", "json"] | None, typer.Option()] = None,
    log_level: Annotated[Literal["debug", "info", "warning", "error"] | None, typer.Option()] = None,
) -> None:
    """Run the service until SIGTERM, Ctrl-C or `optimus stop`.

    Every flag is also a variable: --round-seconds is OPTIMUS_ROUND_SECONDS.

    Training tasks outlive it: started again on the same data directory, with as many --nodes or more, the service
    adopts them.
    """
    settings = load_settings(
        {
            "host": host,
            "port": port,
            "tls_cert": tls_cert,
            "tls_key": tls_key,
            "data_directory": data_directory,
            "database_url": database_url,
            "service_url": service_url,
            "policy": policy,
            "objective": objective,
            "round_seconds": round_seconds,
            "learning_round_seconds": learning_round_seconds,
            "debounce_seconds": debounce_seconds,
            "local_slots": slots,
            "local_nodes": nodes,
            "local_memory_bytes": memory_bytes,
            "local_gpus": parse_assignments(
                "--local-gpus", local_gpus or [], typed=True, form="TYPE=COUNT, such as a100=4"
            ),
            "local_python": python,
            "drain_seconds": drain_seconds,
            "max_task_failures": max_task_failures,
            "price_per_core_hour": price_per_core_hour,
            "price_per_gpu_hour": parse_assignments(
                "--price-per-gpu-hour", price_per_gpu_hour or [], typed=True, form="TYPE=PRICE, such as a100=2.5"
            ),
            "learn_from_finished_jobs": learn_from_finished_jobs,
            "stop_tasks": stop_tasks,
            "log_format": log_format,
            "log_level": log_level,
        }
    )
    if detach:  # the new process says what is not installed, and imports for seconds
        start_in_background(settings.data_directory.resolve())
        return
    try:
        from optimus_service.process.gc_pause import collector_paused

        with collector_paused():  # it would walk all that is imported again and again
            from optimus_service import server
    except ImportError as error:
        raise service_is_missing(error) from error
    try:
        server.run(settings)
    except SystemExit as end:  # with words if it could not start
        if isinstance(end.code, str):
            raise BadInput(end.code) from end
        raise


def start_in_background(data_directory: Path) -> None:
    """The same command without --detach as a process of its own. Raises `DidNotStart`."""
    running = background.start(data_directory, [word for word in sys.argv[1:] if word != "--detach"])
    log = data_directory / background.LOG_NAME
    output.print_text(f"The service runs at {running.url} (process {running.pid}, log {log}).")
    output.print_text(f"Stop it: optimus stop --data-directory {shlex.quote(str(data_directory))} [--tasks]")


# --- `optimus stop`: end the service of a data directory, and its tasks if that is wanted ----------------------------


def stop(
    data_directory: Annotated[Path | None, typer.Option(resolve_path=True, help="As given to `optimus serve`.")] = None,
    tasks: Annotated[
        bool, typer.Option("--tasks/--leave-tasks", help="End the training tasks on this machine, too.")
    ] = False,
    yes: Yes = False,
) -> None:
    """Stop the service that uses a data directory. Training goes on, unless --tasks ends it as well.

    Jobs whose tasks were ended go on from their last checkpoints when the service runs again. Asks first where one is
    not known to have any: it begins anew. Of a service that does not run nothing is known of that.
    """
    directory = load_settings({"data_directory": data_directory}, misspelled_are_errors=False).data_directory.resolve()
    if data_directory is not None and not directory.is_dir():
        raise BadInput(f"{directory} does not exist. Name the directory that `optimus serve` was given.")
    running = background.find_started(directory)
    if running is not None:
        if tasks and not yes and (lost := _lost(running.url)):
            ask(f"End all tasks? Not known to go on from a checkpoint: {lost}.", "stopped")
        background.stop(running)
        output.print_text(f"The service at {running.url} has stopped.")
    elif not (directory / "lock").exists():
        raise CliError(
            f"{directory} is no service's data directory; it is looked for there, and not by OPTIMUS_URL. Name it with "
            "--data-directory, as `optimus serve --detach` printed it."
        )
    else:
        if data_directory is None and (url := answering()):
            raise CliError(
                f"No service runs on {directory}; the one at {url} uses another data directory. Name that with "
                "--data-directory, as `optimus serve --detach` printed it."
            )
        output.print_text(f"No service runs on {directory}.")
        if tasks and not yes and (n_alive := _tasks(directory, end=False)):
            loses = "What that loses only the service knows: start it to be told."
            ask(f"End {_tasks_words(n_alive)}? {loses}", "stopped")
    n_there = _tasks(directory, end=tasks)
    if tasks:
        ended = f"{_tasks_words(n_there)} {'has' if n_there == 1 else 'have'} ended. " if n_there else ""
        output.print_text(f"{ended}No task is left.")
    elif n_there:
        named = "" if data_directory is None else f" --data-directory {shlex.quote(str(data_directory))}"
        goes, it = ("goes", "it") if n_there == 1 else ("go", "them")
        output.print_text(f"{_tasks_words(n_there)} {goes} on; `optimus stop --tasks{named}` ends {it}.")


def _tasks_words(number: int) -> str:
    return f"{number} training task{'s' * (number != 1)}"


def _lost(url: str) -> str:
    """What the end of all tasks loses; a service that does not say holds nobody up."""
    try:
        with connect(url) as client:
            return lost_by_stops(client, [task for node in client.nodes() for task in node["tasks"]])
    except CliError as error:
        output.say(f"Whether a job loses work cannot be said: {error}")
        return ""


def _tasks(directory: Path, *, end: bool) -> int:
    """How many tasks of local jobs live; with `end`, how many did and are ended. Raises `CliError` when some cannot be
    ended."""
    try:
        from optimus_scheduler.model import TaskPhase
        from optimus_service.clusters.local import LocalCluster, LocalClusterOptions
        from optimus_service.clusters.stop_all import stop_all_tasks
    except ImportError as error:
        raise service_is_missing(error) from error
    if not (directory / "local").is_dir():
        return 0
    cluster = LocalCluster(LocalClusterOptions(directory / "local"))
    try:
        n_alive = sum(task.phase is not TaskPhase.EXITED for task in cluster.tasks())
        if end and not stop_all_tasks(cluster):
            raise CliError("Some tasks could not be ended; try again.")
        return n_alive
    finally:
        cluster.close()


# --- `optimus db`: the database's schema -----------------------------------------------------------------------------

database_app = typer.Typer(cls=Group, no_args_is_help=True, help="Create and update the database's tables.")

DatabaseUrl = Annotated[
    str | None, typer.Option(help="Default: OPTIMUS_DATABASE_URL, else SQLite in the data directory.")
]
DataDirectory = Annotated[Path | None, typer.Option(help="Default: OPTIMUS_DATA_DIRECTORY, else ./optimus-data.")]
Answer = TypeVar("Answer")


@database_app.command(cls=Command)
def upgrade(database_url: DatabaseUrl = None, data_directory: DataDirectory = None, as_json: AsJson = False) -> None:
    """Bring the database to the newest revision; does nothing when it is there."""
    settings = load_settings({"database_url": database_url, "data_directory": data_directory})
    if settings.database_url is None:
        settings.data_directory.mkdir(parents=True, exist_ok=True)
    engine = _store_engine()
    _mapped(lambda: engine.upgrade(settings.url))
    _report(_mapped(lambda: engine.current_revision(settings.url)), engine.head_revision(), as_json=as_json)


@database_app.command(cls=Command)
def current(database_url: DatabaseUrl = None, data_directory: DataDirectory = None, as_json: AsJson = False) -> None:
    """Print the revision that the database has, and the newest one. Exit code 1 if they differ."""
    settings = load_settings({"database_url": database_url, "data_directory": data_directory})
    engine = _store_engine()
    missing = settings.database_url is None and not (settings.data_directory / "optimus.db").exists()
    # Looking must not create an empty database file.
    revision = None if missing else _mapped(lambda: engine.current_revision(settings.url))
    _report(revision, engine.head_revision(), as_json=as_json)


def _store_engine() -> Any:
    try:
        from optimus_service.store.database import engine
    except ImportError as error:
        raise service_is_missing(error) from error
    return engine


def _mapped(action: Callable[[], Answer]) -> Answer:
    from optimus_service.store import errors

    try:
        return action()
    except errors.InvalidDatabaseUrl as error:
        raise BadInput(str(error)) from error
    except errors.StoreError as error:
        raise CliError(f"The database cannot be used: {error}") from error


def _report(revision: str | None, head: str, *, as_json: bool) -> None:
    if as_json:
        output.print_json({"revision": revision, "newest": head})
    else:
        output.print_text(f"revision {revision or 'none (no tables yet)'}, newest {head}")
    if revision != head:
        raise typer.Exit(1)
