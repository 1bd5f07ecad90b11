"""The table of rights: which call needs what. A call that it does not name is refused.

`python -m optimus_service.api.access.rights` prints the table of docs/rights.md; a test compares it with
that page, and with the OpenAPI document. Another test makes every call of it as every kind of caller.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass

from optimus_service.api.access.callers import Need


@dataclass(frozen=True, slots=True)
class Call:
    """A row."""

    method: str
    path: str
    """A template, as in the OpenAPI document."""
    need: Need
    action: str | None = None
    """What the record of who did what calls it; None: it changes nothing."""

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>[^/]+)", re.escape(self.path)))


TABLE: tuple[Call, ...] = (
    Call("GET", "/healthz", Need.NOTHING),
    Call("GET", "/readyz", Need.NOTHING),
    Call("GET", "/openapi.json", Need.READ),
    Call("GET", "/v1/sign-in", Need.NOTHING),
    Call("GET", "/v1/sso/start", Need.NOTHING),
    Call("GET", "/v1/sso/callback", Need.NOTHING, "user.sign-in"),
    Call("POST", "/v1/sso/device", Need.NOTHING),
    Call("POST", "/v1/sso/device/token", Need.NOTHING, "user.sign-in"),
    Call("DELETE", "/v1/session", Need.READ, "user.sign-out"),
    Call("GET", "/metrics", Need.OVERSEE),
    Call("GET", "/v1/whoami", Need.READ),
    Call("GET", "/v1/jobs", Need.READ),
    Call("POST", "/v1/jobs", Need.SUBMIT, "job.submit"),
    Call("POST", "/v1/jobs:batch", Need.SUBMIT, "job.submit"),
    Call("POST", "/v1/jobs:cancel", Need.SUBMIT, "job.cancel"),
    Call("POST", "/v1/plan", Need.SUBMIT),
    Call("GET", "/v1/queue", Need.READ),
    Call("GET", "/v1/jobs/{job_id}", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/events", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/decisions", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/predictions", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/evaluations", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/curves", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/allocations", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/tasks", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/logs", Need.READ_JOB),
    Call("GET", "/v1/jobs/{job_id}/explanation", Need.READ_JOB),
    Call("PATCH", "/v1/jobs/{job_id}", Need.CHANGE_JOB, "job.change"),
    Call("POST", "/v1/jobs/{job_id}/plan", Need.CHANGE_JOB),
    Call("DELETE", "/v1/jobs/{job_id}", Need.CHANGE_JOB, "job.delete"),
    Call("POST", "/v1/jobs/{job_id}/cancel", Need.CHANGE_JOB, "job.cancel"),
    Call("POST", "/v1/jobs/{job_id}/pause", Need.CHANGE_JOB, "job.pause"),
    Call("POST", "/v1/jobs/{job_id}/resume", Need.CHANGE_JOB, "job.resume"),
    Call("POST", "/v1/jobs/{job_id}/retry", Need.CHANGE_JOB, "job.retry"),
    Call("POST", "/v1/jobs/{job_id}/token", Need.CHANGE_JOB, "job.token"),
    Call("POST", "/v1/jobs/{job_id}/telemetry", Need.OWN_TASKS),
    Call("GET", "/v1/jobs/{job_id}/membership", Need.OWN_TASKS),
    Call("POST", "/v1/jobs/{job_id}/membership", Need.OWN_TASKS),
    Call("PUT", "/v1/jobs/{job_id}/profile", Need.OWN_TASKS),
    Call("PUT", "/v1/jobs/{job_id}/network", Need.OWN_TASKS),
    Call("PUT", "/v1/jobs/{job_id}/learning-rates", Need.OWN_TASKS),
    Call("POST", "/v1/jobs/{job_id}/result", Need.OWN_TASKS),
    Call("POST", "/v1/track/{name}", Need.SUBMIT, "job.track"),
    Call("POST", "/v1/track/{name}/{run}", Need.SUBMIT, "job.track"),
    Call("GET", "/api/2.0/mlflow/{subject}/{call}", Need.READ),
    Call("POST", "/api/2.0/mlflow/{subject}/{call}", Need.SUBMIT, "job.track"),
    Call("GET", "/v1/cluster", Need.READ),
    Call("GET", "/v1/cluster/history", Need.READ),
    Call("GET", "/v1/nodes", Need.READ),
    Call("POST", "/v1/nodes/{name}/cordon", Need.OPERATE, "node.cordon"),
    Call("POST", "/v1/nodes/{name}/drain", Need.OPERATE, "node.drain"),
    Call("POST", "/v1/nodes/{name}/uncordon", Need.OPERATE, "node.uncordon"),
    Call("GET", "/v1/stream", Need.READ),
    Call("GET", "/v1/trace", Need.READ),
    Call("GET", "/v1/rounds", Need.OVERSEE),
    Call("GET", "/v1/promises", Need.READ),
    Call("GET", "/v1/usage", Need.READ),
    Call("GET", "/v1/projects", Need.READ),
    Call("GET", "/v1/projects/{name}", Need.READ),
    Call("PUT", "/v1/projects/{name}", Need.OPERATE, "quota.set"),
    Call("POST", "/v1/projects/{name}/plan", Need.OPERATE),
    Call("DELETE", "/v1/projects/{name}", Need.OPERATE, "quota.delete"),
    Call("GET", "/v1/users", Need.ADMINISTER),
    Call("GET", "/v1/users/{name}", Need.ADMINISTER),
    Call("POST", "/v1/users/{name}", Need.ADMINISTER, "user.create"),
    Call("PUT", "/v1/users/{name}", Need.ADMINISTER, "user.change"),
    Call("DELETE", "/v1/users/{name}", Need.ADMINISTER, "user.remove"),
    Call("GET", "/v1/tokens", Need.READ),
    Call("POST", "/v1/tokens", Need.OWN_TOKENS, "token.create"),
    Call("DELETE", "/v1/tokens/{token_id}", Need.OWN_TOKENS, "token.revoke"),
    Call("GET", "/v1/audit", Need.OVERSEE),
)

_PATTERNS = tuple((call, call.pattern) for call in TABLE)


def calls_at(path: str) -> dict[str, tuple[Call, dict[str, str]]]:
    """The rows of a path (not a template) by method, each with the values of its parameters; empty: it has none."""
    found = ((call, pattern.fullmatch(path)) for call, pattern in _PATTERNS)
    return {call.method: (call, match.groupdict()) for call, match in found if match is not None}


def table() -> str:
    """The table in Markdown."""
    rows = ["| call | needs | recorded as |", "|---|---|---|"]
    rows += [f"| `{each.method} {each.path}` | {each.need} | {each.action or ''} |" for each in TABLE]
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
