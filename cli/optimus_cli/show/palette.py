"""Colours of the terminal and of the plots."""

from __future__ import annotations

STATE_STYLES = {
    "queued": "yellow",
    "running": "cyan",
    "paused": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "dim",
}

# Okabe and Ito, "Color Universal Design" (2008): told apart with every common kind of colour blindness.
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
SKY = "#56B4E9"
BLACK = "#000000"
SERIES = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Series differ in their markers as well, for black-and-white prints."""


def series(index: int) -> str:
    """The colour of the `index`-th series; they repeat after seven."""
    return SERIES[index % len(SERIES)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]
