"""What the pages tell readers to type is accepted: commands, job files, traces, Python."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from tests.client.agent import agent, run
from tests.repository.pages import PAGES, ROOT, Example, commands, examples, tracked_files

from optimus_cli.app import app
from optimus_contract import codec
from optimus_contract.answers import Problem
from optimus_contract.job import JobSpec
from optimus_service.requests import checked
from optimus_simulator.traces.own import read_own
from optimus_workers.task import TrainingTask

_APP: Any = typer.main.get_command(app)
_USAGE_ERROR: Any = typer.BadParameter.__mro__[1]

# --- commands --------------------------------------------------------------------------------------------------------


def _alternatives(line: str) -> list[list[str]]:
    """The words of each command that a line stands for: `optimus db upgrade | current` are two."""
    first, *others = [shlex.split(each.strip("[]")) for each in re.sub(r"\]\.\.\.|[\[\]]", "", line).split(" | ")]
    return [first[1:], *(first[1:-1] + other for other in others)]


def _accept(words: list[str]) -> None:
    """Read the words as the command line does; an argument that is left out is fine in a sentence."""
    command, context = _APP, _APP.make_context("optimus", [], resilient_parsing=True)
    rest = list(words)
    while hasattr(command, "commands"):
        _, rest, _ = command.make_parser(context).parse_args(rest)
        if not rest:
            return
        assert rest[0] in command.commands, f"there is no command {rest[0]!r}"
        command, rest = command.commands[rest[0]], rest[1:]
        context = command.make_context(command.name, [], parent=context, resilient_parsing=True)
    rest = rest[: rest.index("--")] if "--" in rest else rest
    context.resilient_parsing = False  # wrong values are to be errors
    values, left, _ = command.make_parser(context).parse_args(rest)
    assert left == []
    for parameter in command.params:
        if values.get(parameter.name) and not getattr(parameter, "is_flag", False):
            parameter.process_value(context, values[parameter.name])


@pytest.mark.parametrize("example", commands("optimus"), ids=str)
def test_a_command_is_one_of_ours(example: Example) -> None:
    for words in _alternatives(example.text):
        if words[:1] == ["COMMAND"]:
            continue
        try:
            _accept(words)
        except _USAGE_ERROR as error:
            if not (words[-1].startswith("--") and "requires an argument" in error.format_message()):
                raise  # a sentence may name a flag without its value


def test_a_wrong_command_is_noticed() -> None:
    for words in (["submit", "--no-such-flag", "1"], ["submit", "--mode", "fast"], ["list", "a", "b"]):
        with pytest.raises((_USAGE_ERROR, AssertionError)):
            _accept(words)
    with pytest.raises(AssertionError, match="no command"):
        _accept(["sumbit"])


@pytest.mark.parametrize("example", commands("python -m"), ids=str)
def test_a_program_exists_and_has_the_flags(example: Example) -> None:
    module, *arguments = shlex.split(example.text)[2:]
    path = module.replace(".", "/")
    files = [file for file in tracked_files() if f"/{file}".endswith((f"/{path}.py", f"/{path}/__main__.py"))]
    assert files, f"there is no {module}"
    folder = (ROOT / files[0]).parent
    source = "".join(
        each.read_text() for each in (folder.glob("*.py") if "__main__" in files[0] else [ROOT / files[0]])
    )
    source += (ROOT / "benchmarks" / "report.py").read_text() if (ROOT / "benchmarks" / "report.py").exists() else ""
    assert [each for each in arguments if each.startswith("--") and f'"{each}"' not in source] == []


def test_the_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)", page.read_text())}
    assert named
    assert named <= targets


# --- documents -------------------------------------------------------------------------------------------------------

NOT_JOBS = {"docs/kubernetes.md", "docs/metrics.md"}
"""Their YAML is of the chart and of Prometheus."""


@pytest.mark.parametrize("example", [each for each in examples("yaml") if each.page not in NOT_JOBS], ids=str)
def test_a_job_file_is_accepted(example: Example) -> None:
    document = yaml.safe_load(example.text)
    what = {} if "command" in document else {"task": "mine:task"}
    checked(JobSpec, {"name": "example", **what, **document})


def test_the_values_of_the_chart_are_accepted() -> None:
    (example,) = [each for each in examples("yaml") if each.page == "docs/kubernetes.md"]
    schema = json.loads((ROOT / "helm/optimus/values.schema.json").read_text())
    jsonschema.validate(yaml.safe_load(example.text), schema)


def test_the_job_that_curl_submits_is_accepted() -> None:
    (body,) = re.findall(r"-d '(\{.*?\})'", (ROOT / "docs/api.md").read_text())
    checked(JobSpec, json.loads(body))


def test_the_problem_is_one() -> None:
    (example,) = [each for each in examples("json") if each.page == "docs/api-rules.md"]
    document = json.loads(example.text)
    codec.read(Problem, document, strict=True)
    assert set(document) <= {each.name for each in fields(Problem)}


def _trace(folder: Path) -> Path:
    """The two jobs of docs/traces.md."""
    first, second = [each.text for each in examples("json") if each.page == "docs/traces.md"]
    cluster, job = first.split("\n", 1)
    plain = json.loads(job)
    elastic = {**plain, "id": "b", **json.loads(second)}
    trace = folder / "trace.jsonl"
    trace.write_text("\n".join([cluster, json.dumps(plain), json.dumps(elastic)]))
    return trace


def test_the_traces_are_read(tmp_path: Path) -> None:
    assert len(read_own(_trace(tmp_path)).jobs) == 2


# --- Python ----------------------------------------------------------------------------------------------------------

REPORTING = """
import optimus_client
loss = 0.5
"""
TRAINING = """
import torch
import optimus_client
model, loss_of = torch.nn.Linear(4, 1), torch.nn.functional.mse_loss
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
"""
BEFORE: dict[str, tuple[str, ...]] = {
    "docs/study.md": (
        "import json, torch",
        "model = torch.nn.Conv2d(3, 4, 3)",
        "from optimus_workers.task.network import describe",
        "text = json.dumps(describe(model, torch.zeros(1, 3, 9, 9)))",
    ),
    "docs/task-data.md": ("import pathlib", "from glob import glob", "counts = [2]"),
    "docs/learning-rates.md": (
        "from optimus_workers.task import OptimizerSpec",
        "TrainingTask = lambda *_, **given: given",
    ),
    "docs/tasks.md": (),
    "simulator/README.md": (),
}
"""What an example takes for granted."""
GUIDES = {"docs/from-plain-loop.md", "docs/from-hugging-face.md", "docs/from-lightning.md"}
ELSEWHERE = {"docs/client.md", "models/README.md", *GUIDES}
"""Their examples are run by test_docs.py and test_guides.py in tests/client, and tests/models/test_public_api.py."""
PYTHON = [each for each in examples("python") if each.page not in ELSEWHERE]


def test_each_page_with_python_is_known() -> None:
    assert {each.page for each in PYTHON} == {*BEFORE, "docs/scripts.md", "docs/tracking.md"}


@pytest.mark.parametrize("example", [each for each in PYTHON if each.page in BEFORE], ids=str)
def test_python_runs(example: Example, tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text("{}\n{}\n")
    (tmp_path / "trace").mkdir()
    # The workload of the paper takes a while: a smaller one will do.
    text = example.text.replace("/data/", f"{tmp_path}/").replace('"paper"', repr(str(_trace(tmp_path / "trace"))))
    exec(compile("\n".join([*BEFORE[example.page], text]), example.page, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("example", [each for each in PYTHON if each.page not in BEFORE], ids=str)
def test_training_runs(example: Example, tmp_path: Path) -> None:
    with agent(tmp_path) as heard:
        run((TRAINING if "model" in example.text else REPORTING) + example.text, heard.variables)
        assert heard.steps


def test_the_table_of_a_task_has_all_of_its_fields() -> None:
    page = (ROOT / "docs/tasks.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", page.partition("\n\n`task: ")[0], re.MULTILINE) == [
        each.name for each in fields(TrainingTask)
    ]


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [each for each in PAGES if "decisions" not in each.parts], ids=lambda each: each.name)
def test_the_python_files_that_a_page_names_exist(page: Path) -> None:
    files = [f"/{each}" for each in tracked_files()]
    named = set(re.findall(r"`([\w./-]+\.py)`", page.read_text())) - {"mkimage.py"}  # of a machine with real nodes
    assert [name for name in named if not any(file.endswith(f"/{name}") for file in files)] == []


def test_the_variables_that_code_and_messages_name_are_documented() -> None:
    """A message that names a variable which does not exist sends its reader astray."""
    packages = ("client", "cli", "contract", "service", "workers")
    code = {each for each in tracked_files() if each.endswith(".py") and each.split("/")[0] in packages}
    pages = {each for each in tracked_files() if each.endswith(".md")}
    of_code, of_pages = (
        set(re.findall(r"\bOPTIMUS_[A-Z_]*[A-Z]\b", "\n".join((ROOT / each).read_text() for each in sorted(files))))
        for files in (code, pages)
    )
    below_a_documented_one = {"OPTIMUS_KUBERNETES__NAMESPACE"}
    assert of_code - of_pages - below_a_documented_one == set()


# --- size ------------------------------------------------------------------------------------------------------------


WORDS = 950
"""Of a page. What was measured or tried on the way to it belongs to `docs/studies/`."""


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=lambda each: each.name)
def test_a_reference_page_is_read_in_a_sitting(page: Path) -> None:
    written = re.sub(r"<!-- begin: generated.*?<!-- end", "", page.read_text(), flags=re.DOTALL)  # a list is looked up
    assert len(written.split()) <= WORDS
