"""`optimus project`: quotas of projects, what they come to, and who borrows; `optimus usage`: who used how much."""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus
from typing import Annotated, Any

import typer
from rich.console import Group as Lines
from rich.console import RenderableType
from rich.text import Text

from optimus_cli import output
from optimus_cli.bodies import NodeResources, Project, ProjectQuota
from optimus_cli.client import DEFAULT_URL, Client
from optimus_cli.errors import BadInput, Refused
from optimus_cli.job.specification import parse_assignments
from optimus_cli.options import AsJson, Command, Group, Url, Yes, ask, connect
from optimus_cli.show import limits, render_predictions, render_tables, wording
from optimus_cli.show.layout import columns_table, facts_table
from optimus_cli.show.limits import MaxPriority, MaxWaiting, MaxWorkers, WorkersTogether


def project_list(projects: Sequence[Project]) -> RenderableType:
    """One line per project."""
    if not projects:
        return Text("No project has a quota. Give one with `optimus project set`.", style="dim")
    table = columns_table("project", "quota", "guaranteed", "used", "borrowed", "jobs", folded=("quota", "used"))
    told = []
    for project in projects:
        amounts = *(resources(project[part]) for part in ("guaranteed", "used")), _borrowed(project)
        table.add_row(project["name"], quota_words(project["quota"]), *amounts, str(sum(project["jobs"].values())))
        if why := project.get("shrunk"):
            told.append(Text(f"{project['name']}: {why}.", style="dim"))
    return Lines(table, *told)


def project_description(project: Project) -> RenderableType:
    """Everything about one project."""
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(project["jobs"].items()))
    return facts_table(
        [
            ("project", project["name"]),
            ("quota", quota_words(project["quota"])),
            *whom_limits_hold(project["quota"]),
            ("guaranteed now", _guaranteed(project)),
            ("used", resources(project["used"])),
            ("borrowed", _borrowed(project)),
            ("jobs", jobs or "none active"),
        ]
    )


def _guaranteed(project: Project) -> str:
    """What the quota comes to, and why that is less than it names."""
    return "; ".join(filter(None, (resources(project["guaranteed"]), project.get("shrunk"))))


def whom_limits_hold(quota: ProjectQuota) -> list[tuple[str, str]]:
    """Whom limits of the project bind; nothing where it has none."""
    given = {name for name, most in quota.get("limits", {}).items() if most is not None}
    members = (
        "members; not administrators and operators, nor anybody where no tokens are needed"
        if given - {_OF_ALL_JOBS}
        else None
    )
    everybody = "all its jobs" if _OF_ALL_JOBS in given else None
    if members and everybody:
        return [("limits hold for", f"{members}; workers together: {everybody}")]
    return [("limits hold for", each) for each in (members, everybody) if each]


_OF_ALL_JOBS = "workers_together"
"""The limit that rounds keep to, whoever submitted the jobs."""


def _borrowed(project: Project) -> str:
    """What its jobs have beyond the guarantee; who may not borrow has it until the next round."""
    amount = resources(project["borrowed"])
    if project["quota"]["may_borrow"] or amount == wording.UNKNOWN:
        return amount
    return f"none; beyond its guarantee: {amount}, to be given back"


def quota_words(quota: ProjectQuota) -> str:
    """25 % of everything, 8 a100; may not borrow"""
    share, cpu, memory = quota["share"], quota["cpu"], quota["memory_bytes"]
    parts = [] if share is None else [f"{100 * share:.4g} % of everything"]
    parts += [] if cpu is None else [_cores(cpu)]
    parts += [] if memory is None else [wording.size(memory)]
    parts += [f"{count} {gpu_type}" for gpu_type, count in sorted(quota["gpus"].items())]
    most = limits.words(quota.get("limits", {}))
    parts += [] if most == wording.UNKNOWN else [f"at most {most}"]
    return (", ".join(parts) or "none") + ("" if quota["may_borrow"] else "; may not borrow")


def _cores(cpu: float) -> str:
    return f"{cpu:.4g} core{'s' * (cpu != 1)}"


def resources(amount: NodeResources) -> str:
    """4 cores, 16 GiB, 2 a100; a dash for nothing"""
    parts = [_cores(amount["cpu"])] if amount["cpu"] else []
    parts += [wording.size(amount["memory_bytes"])] if amount["memory_bytes"] else []
    parts += [f"{count} {gpu_type}" for gpu_type, count in sorted(amount["gpus"].items()) if count]
    return ", ".join(parts) or wording.UNKNOWN


app = typer.Typer(cls=Group, no_args_is_help=True, help="Quotas: what each project is guaranteed of the cluster.")

Name = Annotated[str, typer.Argument(metavar="PROJECT", help="As jobs name it.")]


@app.command("list", cls=Command)
def list_projects(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List the projects that have a quota."""
    with connect(url) as client:
        projects = client.projects()
    if as_json:
        output.print_json({"projects": projects})
    else:
        output.show(project_list(projects))


@app.command(cls=Command)
def show(name: Name, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show one project: its quota, what that comes to now, what its jobs have."""
    with connect(url) as client:
        project = client.project(name)
    if as_json:
        output.print_json(project)
    else:
        output.show(project_description(project))


@app.command("set", cls=Command)
def set_quota(
    name: Name,
    share: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Part of everything: 0.25 is a quarter.")
    ] = None,
    cpu: Annotated[float | None, typer.Option(help="CPU cores.")] = None,
    memory: Annotated[str | None, typer.Option(help="Such as 512Gi.")] = None,
    gpus: Annotated[list[str] | None, typer.Option(metavar="TYPE=COUNT", help="GPUs of a type; repeatable.")] = None,
    borrow: Annotated[
        bool | None, typer.Option("--borrow/--no-borrow", help="Whether it may have more while others leave it idle.")
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Take it away: share, cpu, memory, gpus, max-waiting, max-workers, workers-together, max-priority; "
            "repeatable.",
        ),
    ] = None,
    max_waiting: MaxWaiting = None,
    max_workers: MaxWorkers = None,
    workers_together: WorkersTogether = None,
    max_priority: MaxPriority = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; say which jobs would get another size, or start later.")
    ] = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Give a project a quota and limits, or change those that it has. What is not given stays. An amount overrules
    --share for its resource."""
    named: dict[str, Any] = {
        "share": share,
        "cpu": cpu,
        "memory_bytes": memory,
        "gpus": _counts(gpus or []),
        "may_borrow": borrow,
    }
    changes = {field: value for field, value in named.items() if value is not None}
    own = limits.given(max_waiting, max_workers, workers_together, max_priority)
    taken = [_amount(each) for each in unset or ()]
    if not changes and not taken and not own:
        raise BadInput(
            "Give at least one of --share, --cpu, --memory, --gpus, --borrow, --no-borrow, --max-waiting, "
            "--max-workers, --workers-together, --max-priority, --unset."
        )
    with connect(url) as client:
        present = _present(client, name)
        most = {field: value for field, value in {**present.pop("limits", {}), **own}.items() if field not in taken}
        quota = {field: value for field, value in {**present, **changes}.items() if field not in taken}
        quota |= {"limits": most} if most else {}
        if not quota.keys() - {"may_borrow"}:
            raise BadInput(
                f"{name} would be guaranteed nothing: give --share, --cpu, --memory, --gpus or a limit, or delete it."
            )
        if dry_run:
            planned = client.plan_project(name, quota)
        else:
            project = client.put_project(name, quota)
    if dry_run and as_json:
        output.print_json(planned)
    elif dry_run:
        output.show(render_predictions.change_plan(planned))
    elif as_json:
        output.print_json(project)
    else:
        output.show(project_description(project))


def _present(client: Client, name: str) -> dict[str, Any]:
    """The quota that the project has, as it is sent; empty for none."""
    try:
        quota = client.project(name)["quota"]
    except Refused as refusal:
        if refusal.status != HTTPStatus.NOT_FOUND:
            raise
        return {}
    most = {field: value for field, value in (quota.get("limits") or {}).items() if value is not None}
    return {field: value for field, value in {**quota, "limits": most}.items() if value not in (None, {})}


def _amount(name: str) -> str:
    """The field of a quota that --unset names."""
    of_limits = {flag: field for flag, field in limits.FIELDS.items() if flag != "max-requests"}
    fields = {"share": "share", "cpu": "cpu", "memory": "memory_bytes", "gpus": "gpus", **of_limits}
    if name not in fields:
        raise BadInput(f"--unset {name}: expected one of {', '.join(fields)}.")
    return fields[name]


@app.command(cls=Command)
def delete(name: Name, yes: Yes = False, url: Url = DEFAULT_URL) -> None:
    """Take a project's quota away, and its limits. Its jobs stay, without a guarantee."""
    with connect(url) as client:
        project = client.project(name)
        had, jobs = quota_words(project["quota"]), sum(project["jobs"].values())
        if not yes:
            active = "1 active job" if jobs == 1 else f"{jobs} active jobs"
            ask(f"Take the quota of {name} away ({had})? It has {active}, without a guarantee then.", "deleted")
        client.delete_project(name)
    output.print_text(f"{name} has no quota any more; it had {had}")


def _counts(assignments: list[str]) -> dict[str, int] | None:
    """`["a100=8"]` as numbers by type."""
    counts = parse_assignments("--gpus", assignments, typed=True, form="TYPE=COUNT, such as a100=4")
    for gpu_type, count in (counts or {}).items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise BadInput(f"--gpus {gpu_type}={count}: expected a number of GPUs")
    return counts


# --- `optimus usage`: who used how much of the cluster in a month ----------------------------------------------------

Month = Annotated[str | None, typer.Option(metavar="YYYY-MM", help="In UTC; default: this month.")]


def usage(month: Month = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Show what jobs of the projects that you may read were given in a month, and what it cost."""
    with connect(url) as client:
        found = client.usage(month)
    output.print_json(found) if as_json else output.show(render_tables.usage(found))
