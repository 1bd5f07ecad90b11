"""In which order policies let waiting jobs start, in words."""

from __future__ import annotations

from collections.abc import Mapping

ORDERS: Mapping[str, str] = {
    "optimus": "those that are soon done and have a high priority come first, and one that has waited long before all",
    "optimus-paper": "those to whom their first tasks save most time come first",
    "fifo": "the oldest comes first",
    "tiresias": "the one that has had least so far comes first",
    "drf": "each gets its minimum before any gets more, the oldest first",
    "max-min": "each gets its minimum before any gets more, the oldest first",
    "tetris": "those that pack well and are short come first",
    "predictable": "the oldest comes first, and one that is done before a gap is needed goes into it",
    "edf": "the one with the earliest deadline comes first",
    "srtf": "the one with the shortest time left comes first",
}
"""By which order policies let waiting jobs start, in words."""
