"""The public name of `optimus_workers.task.network`: users' code imports it from here."""

from optimus_workers.task.network import describe

__all__ = ["describe"]
