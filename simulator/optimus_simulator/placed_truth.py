"""Jobs with parameter servers whose speed depends on where their tasks are, as on the paper's testbed.

A fitted law such as Eq. 4 knows no nodes: its exchange θ2·w/p is that of tasks that all sit on nodes of their own. Here
that term is the cost of the placement that the job really has (section 4.2 of the paper; `transfer_cost`): nothing on a
single node, and what the busiest task sends to other nodes otherwise.

References: Peng et al., "Optimus", EuroSys 2018, sections 3.2 and 4.2, figures 20 and 21.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from optimus_scheduler.place.network_cost import transfer_cost
from optimus_simulator.truth import ParameterServerLaw, ParametricTruth, Shape, size_of

_SERVERS = (1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
_EXCESS = (1.0, 1.15, 1.03, 1.28, 1.52, 1.57, 1.6)
"""What MXNet's division of the parameters makes of the exchange, by number of servers: the difference of the step times
of figure 20 over θ2·w/p of table 2, with 10 workers; about the same from 12 to 20 servers."""


def uneven_excess(servers: int) -> float:
    """How many times as long the exchange takes when parameters are divided as MXNet does it."""
    return float(np.interp(servers, _SERVERS, _EXCESS))


@dataclass(frozen=True, slots=True)
class PlacedTruth(ParametricTruth):
    """A `ParametricTruth` with a law of parameter servers, and an exchange by placement."""

    tasks_per_node: int = 4
    """What `fastest` takes to fit on one node: an oracle does not know which nodes there will be."""
    uneven: bool = False
    """Whether parameters are divided as MXNet does it, not evenly."""

    def steps_per_second(self, shape: Shape) -> float:
        workers, servers = size_of(shape)
        if workers < 1:
            return 0.0
        assert isinstance(self.law, ParameterServerLaw)
        excess = uneven_excess(servers) if self.uneven else 1.0
        return self.law.placed(workers, servers, transfer_cost(shape) * excess)

    def fastest(self, workers: int, servers: int) -> Shape:
        nodes = -(-(workers + servers) // self.tasks_per_node)
        return tuple((_part(workers, nodes, k), _part(servers, nodes, k)) for k in range(nodes))


def _part(count: int, parts: int, index: int) -> int:
    return (index + 1) * count // parts - index * count // parts
