"""A cluster whose operators close nodes of: what they closed is in the database, whatever the cluster itself says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, cast

from optimus_scheduler.model import Node
from optimus_service.clusters.base import Cluster, ClusterUnavailable
from optimus_service.store.errors import DatabaseNotAvailable

Closed = Mapping[str, bool]
"""Whether nothing may stay there, by the name of the closed node."""


def as_closed(nodes: Iterable[Node], closed: Closed) -> tuple[Node, ...]:
    """The nodes, of which the closed ones take nothing new."""
    return tuple(
        replace(node, schedulable=False, emptied=closed[node.name]) if node.name in closed else node for node in nodes
    )


class _WithClosedNodes:
    """Everything is the cluster's own but its nodes."""

    def __init__(self, cluster: Cluster, closed: Callable[[], Closed]) -> None:
        self._cluster, self._closed = cluster, closed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    def nodes(self) -> tuple[Node, ...]:
        """The nodes that Optimus may use, sorted by name.

        Raises:
            ClusterUnavailable: which are closed cannot be asked.
        """
        nodes = self._cluster.nodes()
        try:
            return as_closed(nodes, self._closed())
        except DatabaseNotAvailable as error:
            raise ClusterUnavailable(f"which nodes are closed is not known: {error}") from error


def with_closed_nodes(cluster: Cluster, closed: Callable[[], Closed]) -> Cluster:
    """`cluster`, whose nodes are closed as `closed` says."""
    return cast(Cluster, _WithClosedNodes(cluster, closed))
