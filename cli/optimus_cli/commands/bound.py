"""`optimus bound`: what no scheduler can do better than, on a trace and its cluster."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from optimus_cli.commands.simulate import TRACES, options_of
from optimus_cli.errors import BadInput
from optimus_cli.options import AsJson


def bound(
    trace: Annotated[str, typer.Argument(help=TRACES)],
    seed: Annotated[int, typer.Option(min=0, help="Of a trace that is drawn.")] = 0,
    elastic_batch: Annotated[
        bool, typer.Option("--elastic-batch", help="Let the jobs of a Pollux workload have their batch chosen.")
    ] = False,
    load: Annotated[float, typer.Option(help="Let jobs arrive so many times as fast.")] = 1.0,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Any other option; see docs/simulate.md.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The least mean completion time and makespan, and the most deadlines met, of any scheduler on a trace."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from optimus_cli.simulation import show_bound

    if not 0.0 < load < float("inf"):
        raise BadInput("--load: above 0, please")
    elastic = ["elastic_batch=true"] if elastic_batch else []
    options = options_of(False, False, [*(settings or []), *elastic, f"load={load}"])
    show_bound(trace, options, seed, as_json=as_json)
