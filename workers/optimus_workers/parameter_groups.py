"""The public name of `optimus_workers.task.parameter_groups`: users' code imports it from here."""

from optimus_workers.task.parameter_groups import named_groups

__all__ = ["named_groups"]
