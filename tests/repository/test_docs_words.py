"""What the pages say of calls, flags, messages and other files is so."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError
from tests.repository.pages import PAGES, ROOT, commands, examples

from optimus_cli.errors import FieldError, Refused
from optimus_cli.job.flags import FLAGS, field_leaves
from optimus_cli.job.jobfile import read_job_file
from optimus_cli.job.specification import assemble, parse_elastic, parse_target
from optimus_cli.job.sweeps import parse_sweeps, swept
from optimus_contract.job import JobSpec
from optimus_service.api.http.validation import field_errors
from optimus_service.requests import checked
from optimus_workers.script.channels import printed
from optimus_workers.script.learning import UNREAD_LINES, UNREAD_SECONDS
from optimus_workers.zoo import digits

Call = tuple[str, str]
"""Method and path; the names of what a path has in braces do not count."""


# --- links -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda each: str(each.relative_to(ROOT)))
def test_a_page_read_in_the_repository_has_no_dead_link(page: Path) -> None:
    without_code = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    targets = [each.partition("#")[0] for each in re.findall(r"\]\(([^)\s]+)\)", without_code)]
    inside = [each for each in targets if each and ":" not in each]
    assert [each for each in inside if not (page.parent / each).exists()] == []


# --- calls -----------------------------------------------------------------------------------------------------------


def _documented(page: str) -> Iterator[Call]:
    """The calls in the first cells of a page's tables. `.../x` goes on after the path before it, a word alone takes
    the place of that path's end, a method alone is of the next path."""
    for row in re.findall(r"^\| (`.*?`[^|]*) \|", page, re.MULTILINE):
        methods, waiting, path = [], [], ""
        for word in re.findall(r"`([^`]+)`", row):
            method, _, rest = word.rpartition(" ")
            if word.isupper():
                waiting.append(word)
                continue
            if method:
                methods = [*waiting, method]
                waiting = []
            if rest.startswith("..."):
                path += rest.removeprefix("...")
            else:
                path = rest if rest.startswith("/") else f"{path.rpartition('/')[0]}/{rest}"
            yield from ((each, _nameless(path)) for each in methods)


def _nameless(path: str) -> str:
    path = re.sub(r"\{\w+\}", "{}", path.partition("?")[0])
    return path.replace("/...", "/{}/{}") if path.startswith("/api/") else path


@pytest.fixture(scope="module")
def operations() -> dict[Call, Any]:
    """What the service's OpenAPI document has."""
    found = importlib.util.spec_from_file_location("docs_site", ROOT / "scripts/docs_site.py")
    assert found is not None
    assert found.loader is not None
    docs_site = importlib.util.module_from_spec(found)
    found.loader.exec_module(docs_site)
    paths = docs_site.openapi()["paths"].items()
    return {
        (method.upper(), _nameless(path)): operation for path, methods in paths for method, operation in methods.items()
    }


@pytest.mark.parametrize(("page", "is_of_tasks"), [("docs/api.md", False), ("docs/api-tasks.md", True)])
def test_a_page_of_the_api_lists_all_of_its_calls(operations: dict[Call, Any], page: str, is_of_tasks: bool) -> None:
    known = {call for call, each in operations.items() if (each["tags"] == ["calls of a job's tasks"]) is is_of_tasks}
    documented = set(_documented((ROOT / page).read_text()))
    assert known - documented == set()
    no_operations = {"/", "/docs", "/assets/...", "/runbooks/", "/runbooks/NAME", "/openapi.json"}
    assert {each for each in documented - operations.keys() if each[1] not in no_operations} == set()


# --- flags -----------------------------------------------------------------------------------------------------------


def _without_a_flag() -> set[str]:
    """Fields that no flag of `optimus submit` sets."""
    set_by_one: set[tuple[str, ...]] = {flag.field for flag in FLAGS} | {("command",)}  # it follows --
    parsed = {
        ("elastic_batch",): parse_elastic("--elastic-batch", "1:2:1") or {},
        ("convergence", "target_metric"): (parse_target("", "a>=1") or {}) | (parse_target("", "a<=1") or {}),
    }
    for path, fields in parsed.items():
        set_by_one |= {(*path, each) for each in fields}
    return {".".join(path) for path, _ in field_leaves(JobSpec, whole=()) if path not in set_by_one}


def test_the_fields_that_have_no_flag_are_those_that_the_page_names() -> None:
    page = (ROOT / "docs/submitting.md").read_text()
    (sentence,) = re.findall(r"A file alone says (.*?)\. ", page, re.DOTALL)
    assert set(re.findall(r"`([\w.]+)`", sentence)) == _without_a_flag()


def test_what_is_said_of_an_unknown_field_is_what_the_page_shows(tmp_path: Path) -> None:
    (shown,) = re.findall(r"`(job\.yaml:2:7: tsak: .*?), \.\.\.`", (ROOT / "docs/submitting.md").read_text())
    (tmp_path / "job.yaml").write_text("name: mine\ntsak: a:b\n")
    specification = assemble(read_job_file(tmp_path / "job.yaml"), [], tmp_path)
    with pytest.raises(ValidationError) as caught:
        checked(JobSpec, specification.document)
    refused = [{**each, "loc": ("body", *each["loc"])} for each in caught.value.errors()]
    errors = [FieldError(each.field, each.message) for each in field_errors(refused, JobSpec)]
    said = str(specification.explain(Refused(422, "no", errors)))
    assert f"{shown}, " in said.replace(f"{tmp_path}/", "")


def test_two_pages_say_alike_for_how_many_jobs_a_loss_of_tasks_is_told() -> None:
    (most,) = re.findall(r"two up to (\d+) jobs", (ROOT / "docs/ahead.md").read_text())
    assert f"With more than {most} jobs one future is simulated" in (ROOT / "docs/explain.md").read_text()


# --- the first job, and sweeps over it -------------------------------------------------------------------------------


def test_the_sweeps_of_the_page_are_over_the_first_job(tmp_path: Path) -> None:
    (first,) = [each.text for each in examples("yaml") if each.page == "docs/first-job.md"]
    (tmp_path / "job.yaml").write_text(first)
    page = (ROOT / "docs/bulk.md").read_text()
    typed = [each.text for each in commands("optimus submit job.yaml --sweep") if each.page == "docs/bulk.md"]
    assert len(typed) == 2
    named = set()
    for line in typed:
        sweeps = parse_sweeps(re.findall(r"--sweep (\S+)", line))
        made = swept(assemble(read_job_file(tmp_path / "job.yaml"), [], tmp_path), sweeps, "3f9a01")
        for each in made:
            checked(JobSpec, each.document)
            task = yaml.safe_load(first)["task"]
            assert task == "optimus_workers.zoo.digits:mlp"
            digits.mlp(**each.document["task_args"])
            assert f"sweep={each.document['labels']['sweep']}" in page
        named |= {each.document["name"] for each in made}
    (name,) = re.findall(r"A job's name says its values \(`([^`]+)`\)", page)
    assert name in named


# --- scripts ---------------------------------------------------------------------------------------------------------


def test_the_figures_of_a_script_in_trouble_are_those_of_its_agent() -> None:
    page = (ROOT / "docs/script-trouble.md").read_text()
    read = f"{printed.LINES_PER_SECOND} lines a second ({printed.BURST_LINES} at once) and the newest are read"
    flood = f"after {printed.FLOOD_SECONDS:g} s with {printed.FLOOD_LINES:,} lines a second or more"
    figures = "a whole number and another figure"
    unread = f"for {UNREAD_SECONDS / 60:g} minutes, in {UNREAD_LINES} lines with {figures}, or until it ends"
    for words in (read, flood, unread):
        assert words in page, words
