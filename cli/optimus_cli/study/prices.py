"""Prices from the command line."""

from __future__ import annotations

from collections.abc import Iterable

from optimus_cli.errors import BadInput
from optimus_models.cost import GPU_HOUR_PRICES, SERVER_HOUR_PRICE, Prices

SERVER = "server"


def parse_prices(options: list[str], gpus: Iterable[str]) -> Prices:
    """`GPU=USD` over the built-in list prices, for the types in `gpus`; a type without any price is free.

    Raises `BadInput`.
    """
    given = {}
    for option in options:
        name, _, text = option.rpartition("=")
        try:
            given[name] = float(text)
        except ValueError:
            given[name] = -1.0
        if not name or not 0 <= given[name] < float("inf"):
            raise BadInput(f"--price {option}: expected GPU=USD, such as V100=2.48")
    server = given.pop(SERVER, SERVER_HOUR_PRICE)
    prices = {gpu: given.get(gpu, GPU_HOUR_PRICES.get(gpu, 0.0)) for gpu in sorted(gpus)}
    unknown = sorted(set(given) - set(prices))
    if unknown:
        raise BadInput(f"--price {unknown[0]}: the file has {', '.join(prices)}")
    return Prices(prices, server)
