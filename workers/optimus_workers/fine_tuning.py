"""The public name of `optimus_workers.task.fine_tuning`: users' code imports it from here."""

from optimus_workers.task.fine_tuning import fine_tuned, freeze_all_but, load_weights

__all__ = ["fine_tuned", "freeze_all_but", "load_weights"]
