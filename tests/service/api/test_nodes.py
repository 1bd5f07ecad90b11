"""Operators close nodes, empty them, and open them again."""

from __future__ import annotations

import pytest
from tests.service.api.api_harness import Api, problem

from optimus_scheduler.model import Node, Resources
from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.clusters.closing import as_closed, with_closed_nodes
from optimus_service.clusters.fake import FakeCluster
from optimus_service.store.errors import DatabaseNotAvailable


def test_a_node_is_closed_emptied_and_opened(api: Api) -> None:
    told = []
    for what in ("cordon", "cordon", "drain", "uncordon", "uncordon"):
        answer = api.post(f"/v1/nodes/node-1/{what}")
        assert answer.status_code == 200, answer.text
        told.append((answer.json()["schedulable"], answer.json()["drained"]))
        assert api.get("/v1/nodes").json()["nodes"] == [answer.json()]
    assert told == [(False, False), (False, False), (False, True), (True, False), (True, False)]
    assert set(api.surroundings.triggers) == {"nodes changed"}
    recorded = [(each["action"], each["target"]) for each in api.get("/v1/audit").json()["entries"]]
    assert recorded[:2] == [("node.uncordon", "node-1")] * 2
    assert len(recorded) == 5


@pytest.mark.parametrize("what", ["cordon", "drain", "uncordon"])
def test_there_is_no_such_node(api: Api, what: str) -> None:
    assert "no node 'elsewhere'" in problem(api.post(f"/v1/nodes/elsewhere/{what}"), 404)["detail"]
    assert api.repository.nodes.closed() == {}


def test_what_the_cluster_closed_itself_stays_closed() -> None:
    nodes = (Node("a", Resources(1.0), schedulable=False), Node("b", Resources(1.0)))
    assert as_closed(nodes, {}) == nodes
    assert [(node.schedulable, node.emptied) for node in as_closed(nodes, {"b": True, "gone": False})] == [
        (False, False), (False, True),
    ]  # fmt: skip


def test_no_round_takes_closed_nodes_for_open_ones_while_the_database_is_away() -> None:
    def away() -> dict[str, bool]:
        raise DatabaseNotAvailable("no connection")

    cluster = with_closed_nodes(FakeCluster([Node("a", Resources(1.0))]), away)
    assert cluster.tasks() == ()
    with pytest.raises(ClusterUnavailable, match="which nodes are closed is not known"):
        cluster.nodes()
