"""The service's settings from flags and `OPTIMUS_*` variables, with its complaints in terms of these."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from optimus_cli import output
from optimus_cli.errors import BadInput, MissingPart

if TYPE_CHECKING:
    from optimus_service.settings import Settings

FLAGS = {
    "host": "--host",
    "port": "--port",
    "tls_cert": "--tls-cert",
    "tls_key": "--tls-key",
    "data_directory": "--data-directory",
    "database_url": "--database-url",
    "service_url": "--service-url",
    "policy": "--policy",
    "objective": "--objective",
    "round_seconds": "--round-seconds",
    "learning_round_seconds": "--learning-round-seconds",
    "debounce_seconds": "--debounce-seconds",
    "local_slots": "--slots",
    "local_nodes": "--nodes",
    "local_memory_bytes": "--memory-bytes",
    "local_gpus": "--local-gpus",
    "local_python": "--python",
    "drain_seconds": "--drain-seconds",
    "max_task_failures": "--max-task-failures",
    "price_per_core_hour": "--price-per-core-hour",
    "price_per_gpu_hour": "--price-per-gpu-hour",
    "learn_from_finished_jobs": "--learn-from-finished-jobs",
    "stop_tasks": "--stop-tasks",
    "log_format": "--log-format",
    "log_level": "--log-level",
}
"""The flag of each setting that has one. Secrets have none: command lines can be seen by others."""


def load_settings(flags: Mapping[str, Any], *, misspelled_are_errors: bool = True) -> Settings:
    """Flags over variables over defaults; variables that are no settings are errors, or warned of.

    Raises `BadInput` with one line per setting that is wrong or that is none.
    """
    settings_class, validation_error, misspelled_variables = _service_settings()
    like_flags = {f"OPTIMUS_{flag[2:].replace('-', '_').upper()}": field for field, flag in FLAGS.items()}
    unlike = {name: value for name, value in os.environ.items() if name not in like_flags}
    if misspelled := misspelled_variables(unlike):
        if misspelled_are_errors:
            raise BadInput("\n".join(misspelled))
        output.say("\n".join(f"Warning: {each}" for each in misspelled))
    # `--slots` is the setting `local_slots`: both variables count, that of the setting before that of the flag.
    named = {
        field: os.environ[variable]
        for variable, field in like_flags.items()
        if variable in os.environ and f"OPTIMUS_{field.upper()}" not in os.environ
    }
    given = {**named, **{name: value for name, value in flags.items() if value is not None}}
    try:
        return settings_class(**given)
    except validation_error as error:
        raise BadInput("\n".join(_complaint(item, given) for item in error.errors(include_url=False))) from error


def _service_settings() -> tuple[Callable[..., Settings], type[Any], Callable[[Mapping[str, str]], list[str]]]:
    try:
        from pydantic import ValidationError

        from optimus_service.settings import Settings, misspelled_variables
    except ImportError as error:
        raise service_is_missing(error) from error
    return Settings, ValidationError, misspelled_variables


def service_is_missing(error: ImportError) -> MissingPart:
    return MissingPart(
        f"This needs the service, which is not installed here ({error}): pip install 'optimus-scheduler[service]'"
    )


def _complaint(item: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    message = str(item["msg"]).removeprefix("Value error, ").replace("Input should ", "must ")
    if not item["loc"]:
        return message
    # Settings that come from variables are reported under the variable's name or the field's, by either spelling.
    name = str(item["loc"][0]).lower().removeprefix("optimus_")
    source = FLAGS[name] if name in given else f"OPTIMUS_{name.upper()}"
    return f"{source} {item['input']}: {message}" if "input" in item else f"{source}: {message}"
