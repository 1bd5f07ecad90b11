"""What schemathesis is told about this service, beyond its OpenAPI document. Loaded by schemathesis itself.

* Calls of a job's tasks are made for a job that exists, with that job's token.
* Long polls wait a moment only.
* A request that the schema allows may be refused (422) for the reasons in `RULES` and for no others.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from pathlib import Path
from typing import Any

import schemathesis

KNOWN = json.loads(Path(os.environ["OPTIMUS_FUZZ"]).read_text())
JOBS = sorted(KNOWN["jobs"])
LONGEST_POLL_SECONDS = 0.2
RULES = [
    # (field, what the answer says of it): rules about several fields, or about what the service knows at the moment
    ("cursor", "must be the next_cursor of an earlier answer"),
    ("task", "the job has no task of this name"),
    ("label", "is no label"),
    # each job of many is any object, so that the answer can tell of each: its fields are those of `POST /v1/jobs`
    (r"jobs\.\d+(\..*)?", ""),
    # the code that a job names, and what the cluster has
    ("task", "^(?!must |should )"),
    ("tracked", "^a tracked job is not scheduled"),
    # scripts, and what goes with them alone
    ("command|python|working_directory", "^(?!must |should )"),
    ("progress_patterns", "is not a regular expression|names no value|no group is named"),
    (r"(convergence\.)?\w+", "for scripts|for jobs with a task|a job with a task|a script (has|scales)"),
    # a job to start from that is not there, or has no checkpoint here
    ("from_job", "^there is no job|checkpoint"),
    (r"(workers|servers)(\.min|\.resources\.\w+)?|gpu_types", "the largest node has|the cluster has|the whole cluster"),
    ("gpu_types", "^the workers ask for no GPU"),
    (r"convergence\.max_cost", "price"),
    ("deadline|deadline_seconds", "is in the past|from 1970 to 9999|expected a date and time|say which time it is"),
    ("share", "the other projects have"),
    # users and tokens
    ("user|name", "^name one: |choose another$"),
    ("expires_seconds", "^must be at most "),
    ("body", "^an (administrator|operator) has (all projects|no limits)|^say all that the user may do"),
    # what a member may take
    (r"priority|workers\.max", "^may be at most "),
    # two fields of a job that do not go together
    (r"workers|servers|elastic_batch", r"^(min|minimum) \(\d+\) must not be above max"),
    (r"convergence\.target_metric", "give one of at_least and at_most|best goes with at_least"),
    (r"convergence|body", "give at least one of|samples, columns, tasks, checkpoints, silence or notes are required"),
    ("body", "all-reduce|a job without servers says|give one of |scaling weak|the whole specification may have"),
    ("elastic_batch", "an elastic batch is for|give one of elastic_batch|must be from|one worker computes"),
    # what tasks report
    (r"samples\.\d+", r"updates and global_batch go together|rank \(\d+\) must be below workers"),
    (r"columns\.\w+", r"has \d+ values; membership_epoch has \d+"),
    (r"columns\.(updates|rank)\.\d+", r"updates and global_batch go together|^\(\d+\) must be below workers"),
    # so small that it can only be a slip: the document says "0 or above"
    (r"\w+(\.\w+)*", r"^must be 0, or \S+ at least$"),
    # free-form bodies, of which the document names no field
    (".*", "^must not contain the character NUL"),
    ("body", "send samples or columns, not both"),
    ("layers", "^layer |^the "),
    ("body", "give one rate for each step|steps must be increasing"),
    # to JSON Schema 3.0 is an integer, to this service it is none
    (".*", "^must be a valid integer$"),
    # a size in words that comes to more than the bound
    (r".*memory_bytes", "must be less than or equal to"),
    # what stock clients of other projects tell
    (r"trainerStatus\.metrics\.\d+\.value", "^must be a number, or one as text"),
    ("body", "^is no export of OTLP metrics|may have metrics of"),
    (r"[a-z_]+", "^must be (text of 1 to|a list of|a whole number)|: value must be a number"),
    (r"tags\.optimus\..*|project", "."),
    # a job that a sequence of calls has made a watched one
    (r".*", "^the job runs outside the cluster and is only watched"),
    # sizes of predictions
    ("workers|servers", r"must have the smaller number first|may be \d+ sizes at most"),
]


@schemathesis.auth(refresh_interval=None)
class Tokens:
    """The job's token for calls of its tasks, the user's for all others."""

    def get(self, case: Any, _context: Any) -> str | None:
        """The token that the call needs, by what the document says; None for calls that need none."""
        needs = [name for need in case.operation.definition.raw.get("security", []) for name in need]
        if "job" not in needs:
            return KNOWN["token"] if "user" in needs else None
        return str(KNOWN["jobs"][_job_of(case)])

    def set(self, case: Any, data: str, _context: Any) -> None:
        """Send it."""
        if data != KNOWN["token"]:
            case.path_parameters["job_id"] = _job_of(case)
        case.headers["Authorization"] = f"Bearer {data}"


def _job_of(case: Any) -> str:
    """A job that exists, always the same for the same case. Results end jobs: they are told of half of them only."""
    half = len(JOBS) // 2
    jobs = JOBS[half:] if case.operation.path.endswith("/result") else JOBS[:half]
    given = str(case.path_parameters.get("job_id"))
    return given if given in jobs else jobs[zlib.crc32(repr(case.body).encode()) % len(jobs)]


@schemathesis.hook  # type: ignore[untyped-decorator]  # schemathesis is in an environment of its own
def before_call(_context: Any, case: Any, _kwargs: dict[str, Any]) -> None:
    """Shorten long polls, but none that the document forbids."""
    query = case.query or {}
    if case.operation.path.endswith("/membership") and case.method == "GET":
        seconds = _number(query.get("timeout_seconds", LONGEST_POLL_SECONDS + 1))
        named = {each["name"]: each["schema"] for each in case.operation.definition.raw["parameters"]}
        if seconds is not None and LONGEST_POLL_SECONDS < seconds <= named["timeout_seconds"]["maximum"]:
            case.query = {**query, "timeout_seconds": LONGEST_POLL_SECONDS}


def _number(value: object) -> float | None:
    try:
        return float(str(value))
    except ValueError:
        return None


def _is(field: str, says: str, error: dict[str, str]) -> bool:
    """Whether the rule is about this error. Names of fields that are drawn may have line breaks."""
    return bool(re.fullmatch(field, error["field"], re.DOTALL) and re.search(says, error["message"]))


@schemathesis.check  # type: ignore[untyped-decorator]  # see above
def only_rules_refuse_what_the_schema_allows(_context: Any, response: Any, case: Any) -> None:
    """A 422 to a request that follows the schema names a rule that JSON Schema cannot express."""
    meta = case.meta
    if response.status_code != 422 or meta is None or not meta.generation.mode.is_positive:
        return
    for error in response.json()["errors"]:
        if not any(_is(field, says, error) for field, says in RULES):
            raise AssertionError(f"the schema allows what the service refuses: {error['field']}: {error['message']}")
