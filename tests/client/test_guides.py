"""The examples of the guides run, each as its page says: unchanged, with one line, as a loop, as a task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.client.agent import ROOT, Agent, run
from tests.client.test_docs import BEFORE
from tests.packages import need

from optimus_workers.task import TrainingTask
from optimus_workers.worker.compute import compute_micro_batches, sync_micro_batches
from optimus_workers.worker.flat_model import make_flat

NEEDED = {"from-plain-loop": (), "from-hugging-face": ("transformers", "accelerate"), "from-lightning": ("lightning",)}
"""The pages, and the packages that their examples use."""
EXAMPLES = {
    page: re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL) for page in NEEDED
}
BEGIN = {
    "from-plain-loop": EXAMPLES["from-plain-loop"][0],
    "from-hugging-face": BEFORE["from transformers"],
    "from-lightning": BEFORE["import lightning"],
}
"""What stands before the examples with changes: the script as it was, or model and data."""


def examples(word: str) -> list[tuple[str, str]]:
    """Those that have the word, with the names of their pages."""
    return [(page, text) for page, all_of in EXAMPLES.items() for text in all_of if word in text]


def needs(page: str) -> None:
    need(*NEEDED[page])


def test_each_guide_goes_from_nothing_to_a_task() -> None:
    assert {page: len(all_of) for page, all_of in EXAMPLES.items()} == {
        "from-plain-loop": 4, "from-hugging-face": 3, "from-lightning": 3,
    }  # fmt: skip


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_unchanged_script_runs(page: str, heard: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(page)
    monkeypatch.chdir(tmp_path)
    first = EXAMPLES[page][0]
    printed = run(first if page == "from-plain-loop" else BEGIN[page] + first, heard.variables)
    if page == "from-plain-loop":
        assert re.findall(r"^step (\d+)/30 loss \d", printed, re.MULTILINE) == [str(step) for step in range(1, 31)]


@pytest.mark.parametrize(("page", "example"), examples("optimus_client"))
def test_the_changed_script_tells_its_steps(
    page: str, example: str, heard: Agent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(page)
    monkeypatch.chdir(tmp_path)
    run(BEGIN[page] + example, heard.variables)
    assert heard.steps


@pytest.mark.parametrize(("page", "example"), examples("-> TrainingTask"))
def test_the_task_trains(page: str, example: str) -> None:
    needs(page)
    names: dict[str, object] = {}
    exec(compile(example, page, "exec"), names)
    make = names["task"]
    assert callable(make)
    task = make()
    assert isinstance(task, TrainingTask)
    flat, _ = make_flat(task, task.build_model(0))
    computed = compute_micro_batches(task, flat, sync_micro_batches(task, 0, 0, 0, task.micro_batches), lambda: None)
    assert computed.n_examples == task.global_batch_size
    assert flat.push.abs().sum() > 0
