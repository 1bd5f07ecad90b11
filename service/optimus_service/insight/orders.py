"""In which order policies let waiting jobs start, in words."""

from __future__ import annotations

from collections.abc import Mapping

from optimus_scheduler.model.format import time_words
from optimus_scheduler.settings import Settings

_PATIENCE = Settings()
ORDERS: Mapping[str, str] = {
    "optimus": "those that are soon done and have a high priority come first, and before all one that has waited for "
    f"{time_words(_PATIENCE.patience_seconds)} and {_PATIENCE.patience_part:g} times what it needs alone, divided by "
    f"its priority, or for {time_words(_PATIENCE.most_patience_seconds)}",
    "optimus-paper": "those to whom their first tasks save most time come first",
    "fifo": "the oldest comes first",
    "tiresias": "the one that has had least so far comes first",
    "drf": "each gets its minimum before any gets more, the oldest first",
    "max-min": "each gets its minimum before any gets more, the oldest first",
    "tetris": "those that pack well and are short come first",
    "predictable": "the oldest comes first, and one that is done before a gap is needed goes into it",
    "edf": "the one with the earliest deadline comes first",
    "elasticflow": "those whose deadlines can all be met come first, by deadline, then the oldest",
    "srtf": "the one with the shortest time left comes first",
}
"""By which order policies let waiting jobs start, in words."""
