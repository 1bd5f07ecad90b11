"""Projects as rich shows them. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from optimus_cli import wording
from optimus_cli.bodies import NodeResources, Project, ProjectQuota
from optimus_cli.render import columns_table, facts_table


def project_list(projects: Sequence[Project]) -> RenderableType:
    """One line per project."""
    if not projects:
        return Text("No project has a quota. Give one with `optimus project set`.", style="dim")
    table = columns_table("project", "quota", "guaranteed", "used", "borrowed", "jobs", folded=("quota", "used"))
    for project in projects:
        amounts = (resources(project[part]) for part in ("guaranteed", "used", "borrowed"))
        table.add_row(project["name"], quota_words(project["quota"]), *amounts, str(sum(project["jobs"].values())))
    return table


def project_description(project: Project) -> RenderableType:
    """Everything about one project."""
    jobs = ", ".join(f"{count} {state}" for state, count in sorted(project["jobs"].items()))
    return facts_table(
        [
            ("project", project["name"]),
            ("quota", quota_words(project["quota"])),
            ("guaranteed now", resources(project["guaranteed"])),
            ("used", resources(project["used"])),
            ("borrowed", resources(project["borrowed"])),
            ("jobs", jobs or "none active"),
        ]
    )


def quota_words(quota: ProjectQuota) -> str:
    """25 % of everything, 8 a100; may not borrow"""
    share, cpu, memory = quota["share"], quota["cpu"], quota["memory_bytes"]
    parts = [] if share is None else [f"{100 * share:.4g} % of everything"]
    parts += [] if cpu is None else [f"{cpu:g} cores"]
    parts += [] if memory is None else [wording.size(memory)]
    parts += [f"{count} {gpu_type}" for gpu_type, count in sorted(quota["gpus"].items())]
    return ", ".join(parts) + ("" if quota["may_borrow"] else "; may not borrow")


def resources(amount: NodeResources) -> str:
    """4 cores, 16 GiB, 2 a100; a dash for nothing"""
    parts = [f"{amount['cpu']:.4g} cores"] if amount["cpu"] else []
    parts += [wording.size(amount["memory_bytes"])] if amount["memory_bytes"] else []
    parts += [f"{count} {gpu_type}" for gpu_type, count in sorted(amount["gpus"].items()) if count]
    return ", ".join(parts) or wording.UNKNOWN
