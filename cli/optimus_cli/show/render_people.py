"""Users, tokens and the record of who did what, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from optimus_cli.bodies import AuditEntry, Token, User, WhoAmI
from optimus_cli.show import limits, wording
from optimus_cli.show.layout import FittingTable, columns_table, facts_table


def caller(found: WhoAmI) -> RenderableType:
    """Who one is."""
    projects = "all" if found["projects"] is None else _projects(found["projects"])
    return facts_table(
        [
            ("you are", found["name"]),
            ("role", found["role"] or "by project"),
            ("projects", projects),
            ("scope of the token", found["scope"]),
            ("token", found["token_id"] or wording.UNKNOWN),
            ("at most", limits.words(found.get("limits", {}))),
        ]
    )


def user_list(users: Sequence[User]) -> RenderableType:
    """One line per user."""
    if not users:
        return Text("There are no users. Make one with `optimus user create`.", style="dim")
    table = columns_table("user", "kind", "role", "projects", "limits", "since", folded=("projects", "limits"))
    for user in users:
        role = user["role"] or wording.UNKNOWN
        projects = "all" if user["role"] else _projects(user["projects"])
        own = limits.words(user.get("limits", {}))
        table.add_row(user["name"], user["kind"], role, projects, own, _minute(user["created_at"]))
    return table


def rights(user: User) -> str:
    """operator; or: nlp (viewer), vision (member); empty for none"""
    return user["role"] or (_projects(user["projects"]) if user["projects"] else "")


def lost(before: User, after: User) -> str:
    """What a user could do before and cannot any more, as `rights` says it; empty for nothing."""
    if after["role"] in (before["role"], "administrator") and after["role"]:
        return ""
    if before["role"] or after["role"]:
        return before["role"] or ""
    present = after["projects"]
    weaker = {name: had for name, had in before["projects"].items() if present.get(name) not in (had, "member")}
    return _projects(weaker) if weaker else ""


def token_list(tokens: Sequence[Token]) -> RenderableType:
    """One line per token."""
    if not tokens:
        return Text("There are no tokens. Make one with `optimus token create`.", style="dim")
    rows: list[dict[str, RenderableType]] = [
        {
            "id": token["id"],
            "user": token["user"],
            "name": token["name"],
            "scope": token["scope"],
            "projects": "all" if token["projects"] is None else ", ".join(token["projects"]),
            "last used": _minute(token["last_used_at"]) if token["last_used_at"] else "never",
            "good until": _good_until(token),
        }
        for token in tokens
    ]
    return FittingTable(rows, left_out=("name", "scope"), folded=("projects",))


def audit_list(entries: Sequence[AuditEntry]) -> RenderableType:
    """One line per entry."""
    if not entries:
        return Text("Nothing is recorded of that.", style="dim")
    return FittingTable([dict(_recorded(entry)) for entry in entries], left_out=("project",), folded=("to what",))


def _recorded(entry: AuditEntry) -> list[tuple[str, RenderableType]]:
    said = [f"  {name} {_changed(value)}" for name, value in entry["data"].items() if (name, value) != ("new", True)]
    return [
        ("when", _minute(entry["at"])),
        ("who", Text(entry["who"])),
        ("did", entry["action"]),
        ("project", Text(entry["project"] or wording.UNKNOWN)),
        ("to what", Text("\n".join([entry["target"] or wording.UNKNOWN, *said]))),
    ]


def _changed(value: Any) -> str:
    """`1 → 4` of a field that had another value before; else the value."""
    match value:
        case {"from": before, "to": after, **rest} if not rest:
            return f"{_changed(before)} → {_changed(after)}"
        case str():
            return value
        case _:
            return json.dumps(value, ensure_ascii=False)


def _good_until(token: Token) -> str:
    if token["revoked_at"]:
        return "revoked"
    return _minute(token["expires_at"]) if token["expires_at"] else "for ever"


def _projects(roles: Mapping[str, str]) -> str:
    return ", ".join(f"{project} ({role})" for project, role in sorted(roles.items())) or "none"


def _minute(moment: str) -> str:
    """2026-11-25 09:14, in UTC."""
    return moment[:16].replace("T", " ")
