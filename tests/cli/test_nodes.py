"""`optimus node` and what `optimus nodes` says of closed ones."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli import builders
from tests.cli.conftest import Optimus, ScriptedService

NODE: dict[str, Any] = {
    "name": "node-1", "schedulable": False, "drained": False,
    "capacity": {"cpu": 4.0, "memory_bytes": 2**30, "gpus": {}},
    "used": {"cpu": 1.0, "memory_bytes": 0, "gpus": {}}, "tasks": ["a-worker-0-0"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "schedulable", "said"),
    [
        ("cordon", False, "node-1 takes no new tasks; it has 1 task"),
        ("drain", False, "node-1 is being emptied; it has 1 task"),
        ("uncordon", True, "node-1 is open; it has 1 task"),
        ("uncordon", False, "node-1 is still closed by the cluster itself; it has 1 task"),
    ],
)
def test_nodes_are_closed_and_opened(
    scripted: ScriptedService, optimus: Optimus, what: str, schedulable: bool, said: str
) -> None:
    node = NODE | {"schedulable": schedulable}
    scripted.on("POST", f"/v1/nodes/node-1/{what}", node)
    scripted.on("GET", "/v1/nodes", {"nodes": [node]})
    scripted.on("GET", "/v1/jobs", {"jobs": [], "next_cursor": None})
    done = optimus("node", what, "node-1", "--url", scripted.url)
    assert (done.exit_code, done.stdout) == (0, f"{said}\n")
    assert json.loads(optimus("node", what, "node-1", "--url", scripted.url, "--json").stdout) == node


def test_a_list_says_why_a_node_takes_nothing(scripted: ScriptedService, optimus: Optimus) -> None:
    nodes = [NODE, NODE | {"drained": True}, NODE | {"drained": True, "tasks": []}]
    scripted.on("GET", "/v1/nodes", {"nodes": nodes})
    scripted.on("GET", "/v1/whoami", {"projects": None})
    listed = optimus("nodes", "--url", scripted.url).stdout
    assert all(words in listed for words in ("not schedulable", "is being drained", "drained"))


def test_a_drain_that_loses_steps_asks_first(scripted: ScriptedService, optimus: Optimus) -> None:
    """A script that is not known to have a checkpoint begins anew elsewhere."""
    lost = "60 steps (22 s of work)"
    script = builders.job(id="a", step=60, state="running", begins_anew=True, lost_by_a_stop=lost)
    others = [builders.job(id="b", lost_by_a_stop=lost), builders.job(id="a-worker")]
    scripted.on("GET", "/v1/nodes", {"nodes": [NODE]})
    scripted.on("GET", "/v1/jobs", {"jobs": [script, *others], "next_cursor": None})
    scripted.on("POST", "/v1/nodes/node-1/drain", NODE)
    refused = optimus("node", "drain", "node-1", "--url", scripted.url)
    assert refused.exit_code == 1, "as where a pause is refused"
    assert f"Drain node-1? Not known to go on from a checkpoint: a loses {lost}." in refused.stderr
    assert "Nothing was drained" in refused.stderr
    (asked,) = (request for request in scripted.requests if request.path == "/v1/jobs")
    assert asked.query["state"] != "running", "one that starts has worked, too, before its first step is told"
    assert optimus("node", "drain", "node-1", "--yes", "--url", scripted.url).exit_code == 0
