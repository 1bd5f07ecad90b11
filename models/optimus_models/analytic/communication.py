"""How long one exchange of the gradient takes, by scheme: rounds of latency and bytes through the busiest link.

For w workers, gradient of S bytes, B bytes/s each way per link (full duplex), latency L seconds:

| scheme | rounds | bytes through the busiest link, one way |
|---|---|---|
| `parameter_server` with p servers | 2 | S · max(w/p, 1) |
| `ring` all-reduce | 2(w - 1) | 2S(w - 1)/w |
| `tree` (reduce, then broadcast) | 2 ⌈log2 w⌉ | 2S ⌈log2 w⌉ |
| `butterfly` (recursive halving and doubling) | 2 ⌈log2 w⌉ | 2S(w - 1)/w |
| `one_to_all` (everybody to one, and back) | 2 | S · (w - 1) |

References: Qi et al., ICLR 2017, section 3.2; Thakur et al., IJHPCA 2005; for the parameter server with full-duplex
pipelining, push and pull overlap and each worker still pushes the whole vector, hence max(w/p, 1).
"""

from __future__ import annotations

from enum import StrEnum
from math import ceil, log2


class Scheme(StrEnum):
    """How gradients are exchanged; the table at the top of this module says what each costs."""

    PARAMETER_SERVER = "parameter_server"
    RING = "ring"
    TREE = "tree"
    BUTTERFLY = "butterfly"
    ONE_TO_ALL = "one_to_all"


def rounds(scheme: Scheme, workers: int) -> int:
    """How many messages follow one another."""
    if workers <= 1 and scheme is not Scheme.PARAMETER_SERVER:
        return 0
    match scheme:
        case Scheme.RING:
            return 2 * (workers - 1)
        case Scheme.TREE | Scheme.BUTTERFLY:
            return 2 * ceil(log2(workers))
        case Scheme.PARAMETER_SERVER | Scheme.ONE_TO_ALL:
            return 2


def busiest_link_bytes(scheme: Scheme, workers: int, gradient_bytes: float, servers: int = 1) -> float:
    """Bytes that the busiest link carries in its busier direction."""
    w, s = workers, gradient_bytes
    match scheme:
        case Scheme.PARAMETER_SERVER:
            return s * max(w / servers, 1.0)
        case Scheme.RING | Scheme.BUTTERFLY:
            return 2.0 * s * (w - 1) / w
        case Scheme.TREE:
            return 2.0 * s * ceil(log2(w)) if w > 1 else 0.0
        case Scheme.ONE_TO_ALL:
            return s * (w - 1)


def exchange_seconds(
    scheme: Scheme,
    workers: int,
    gradient_bytes: float,
    *,
    bytes_per_second: float,
    latency_seconds: float = 0.0,
    servers: int = 1,
    compression: float = 1.0,
) -> float:
    """Seconds of one exchange; `compression` is sent bytes / gradient bytes (bf16: 0.5)."""
    carried = busiest_link_bytes(scheme, workers, gradient_bytes * compression, servers)
    return rounds(scheme, workers) * latency_seconds + carried / bytes_per_second
