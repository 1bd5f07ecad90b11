"""All settings of the service, read once at start from `OPTIMUS_*` variables into a frozen object."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import BaseModel, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from optimus_contract.limits import LEAST_PRIORITY, MAX_TASKS, MOST_PRIORITY
from optimus_contract.people import UserLimits
from optimus_scheduler.objective import MEAN_JCT, Objective
from optimus_scheduler.retries import Backoff
from optimus_scheduler.settings import Settings as SchedulerSettings
from optimus_service.settings.addresses import is_loopback
from optimus_service.settings.kubernetes import KubernetesSettings
from optimus_service.settings.oidc import OidcSettings

__all__ = ["Settings", "is_loopback", "misspelled_variables"]

_HEADER_TEXT = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?")
"""What an HTTP header can carry to the letter: blanks at the ends are cut off on the way."""

_FERNET_KEY = re.compile(r"[A-Za-z0-9_-]{43}=")
"""32 bytes in base64, as it is used in URLs."""
_VARIABLES_OF_OTHERS = frozenset(
    f"OPTIMUS_{name}"
    for name in (
        # the command line
        "CA_CERT",
        "URL",
        # tasks
        "ATTEMPT",
        "COORDINATOR_ADDRESS",
        "CPU_LIMIT",
        "GPUS",
        "GPU_TYPE",
        "JOB_DIRECTORY",
        "JOB_ID",
        "JOB_SPEC",
        "JOB_TOKEN",
        "NETWORK_LIMIT",
        "ORIGIN",
        "TASK_NAME",
        "TASK_RANK",
        "TRANSPORT",
        # the processes of scripts
        "ACCUMULATION_STEPS",
        "BATCH_FACTOR",
        "BATCH_PART",
        "CHECKPOINT_DIRECTORY",
        "GLOBAL_BATCH_SIZE",
        "JOB",
        "REPORT_TOKEN_FILE",
        "REPORT_URL",
        "STOP_AT_STEP",
        "STOP_AT_STEP_FILE",
        "STOP_FILE",
        "WARMUP_EPOCHS",
        "WORKER_BATCH_SIZE",
        # images, tests and benchmarks
        "VERSION",
        "DATA",
        "GRAFANA_SCHEMA",
    )
)
"""Variables that are no settings of the service and may be set where it runs."""
_TEST_VARIABLE = re.compile(r"OPTIMUS_TEST_\w+")
_SERVICE_LINK = re.compile(
    r"OPTIMUS_(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT(?:_\w+)?|PORT_\d+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)"
)
"""What Kubernetes sets in pods for a Service whose name begins with `optimus`, unless `enableServiceLinks: false`."""
_LINKED_PORT = re.compile(r"(?:tcp|udp|sctp)://.*")
"""The value of `OPTIMUS_PORT` and other variables that end so, set for the same reason."""


_PARTS: Mapping[str, type[BaseModel]] = MappingProxyType({"kubernetes": KubernetesSettings, "oidc": OidcSettings})
"""Settings that have settings of their own, by the name that theirs begin with."""

Price = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
"""Money, in whatever currency the operator and the jobs' `max_cost` agree on."""


def misspelled_variables(variables: Mapping[str, str]) -> list[str]:
    """One line for each variable `OPTIMUS_...` that is no setting, with the nearest that is. No values."""
    return [
        f"{name}: the service has no such setting{_nearest(name)}"
        for name, value in sorted(variables.items())
        if name.upper().startswith("OPTIMUS_") and not _is_known(name.upper(), value)
    ]


def _is_known(name: str, value: str) -> bool:
    if name in _VARIABLES_OF_OTHERS or _TEST_VARIABLE.fullmatch(name) or _SERVICE_LINK.fullmatch(name):
        return True
    if name.endswith("_PORT") and _LINKED_PORT.fullmatch(value):
        return True
    first, *rest = name.removeprefix("OPTIMUS_").lower().split("__")
    part = _PARTS.get(first)
    return first in Settings.model_fields and (part is None or not rest or rest[0] in part.model_fields)


def _nearest(name: str) -> str:
    nested = [f"{name}__{field}" for name, part in _PARTS.items() for field in part.model_fields]
    names = [f"OPTIMUS_{field.upper()}" for field in (*Settings.model_fields, *nested)]
    found = difflib.get_close_matches(name.upper(), names, 1)
    return f"; did you mean {found[0]}?" if found else ""


class Settings(BaseSettings):
    """The one configuration object of every deployment (embedded, compose, Kubernetes)."""

    # Errors must not repeat their input: a token that is too short would be printed.
    model_config = SettingsConfigDict(
        env_prefix="OPTIMUS_", env_nested_delimiter="__", frozen=True, extra="ignore", hide_input_in_errors=True
    )

    host: str = Field(default="127.0.0.1", description="address to listen on; beyond loopback a token must be set")
    port: int = Field(default=8080, ge=0, le=65535, description="0: any free port")
    tls_cert: Path | None = Field(
        default=None, description="certificate with its chain (PEM): the service speaks https; needs tls_key"
    )
    tls_key: Path | None = Field(default=None, description="private key of the certificate (PEM, without a password)")
    token: SecretStr | None = Field(default=None, description="bearer token for users of the API")
    oidc: OidcSettings | None = Field(
        default=None,
        description="how people sign in with an OpenID provider, see docs/sso.md: OPTIMUS_OIDC__ISSUER ...",
    )
    secret: SecretStr | None = Field(
        default=None, description="key that job tokens are derived from; default: made once in the data directory"
    )
    previous_token: SecretStr | None = Field(
        default=None, description="the token before the present one: good as well until it is left out"
    )
    previous_secret: SecretStr | None = Field(
        default=None, description="the secret before the present one: jobs submitted under it keep their tokens"
    )
    encryption_keys: SecretStr | None = Field(
        default=None,
        description="keys for variables of jobs in the database, separated by commas: the first encrypts, all decrypt; "
        "`optimus secrets key` makes one; default: they are stored in clear",
    )
    member_waiting_jobs: int = Field(
        default=1000, ge=0, le=10**6, description="jobs of one member that may wait, unless the user has a limit"
    )
    member_max_workers: int | None = Field(
        default=None, ge=1, le=MAX_TASKS, description="workers.max of a member's job; default: no limit"
    )
    member_workers_together: int | None = Field(
        default=None, ge=1, le=10**6, description="workers that all jobs of one member hold together; default: no limit"
    )
    member_max_priority: float = Field(
        default=10.0, ge=LEAST_PRIORITY, le=MOST_PRIORITY, description="priority that a member may give a job"
    )
    member_requests_per_second: float = Field(
        default=100.0, ge=0.1, le=1e6, description="requests of one member, to each replica"
    )
    data_directory: Path = Field(default=Path("optimus-data"), description="database (SQLite), job directories, logs")
    database_url: str | None = Field(default=None, description="default: SQLite in the data directory")
    service_url: str | None = Field(
        default=None, description="how tasks reach the service; default: the listening address"
    )
    policy: str = Field(default="optimus", description="scheduling policy, see docs/policies.md")
    objective: str = Field(
        default=str(MEAN_JCT),
        description="what the policy optimus chooses sizes for: jct, makespan, deadlines, fairness or several with "
        "their parts: jct:0.7,makespan:0.3",
    )
    round_seconds: float = Field(default=60.0, gt=0, le=3600, description="period of scheduling rounds")
    samples_per_round: int = Field(
        default=1_000_000,
        ge=1_000,
        le=10_000_000,
        description="samples that one round reads at most, of all jobs together; more are caught up with in later ones",
    )
    learning_round_seconds: float = Field(
        default=10.0, gt=0, le=3600, description="period while the speed of a job is being learned, if shorter"
    )
    debounce_seconds: float = Field(default=0.5, ge=0, le=60, description="events this close together share one round")
    lease_seconds: float = Field(
        default=10.0, ge=2, le=600, description="a leader not heard of for so long is replaced"
    )
    cluster: Literal["local", "kubernetes"] = "local"
    kubernetes: KubernetesSettings = Field(
        default=KubernetesSettings(),
        description="see docs/kubernetes.md; single fields: OPTIMUS_KUBERNETES__NAMESPACE ...",
    )
    local_slots: int = Field(
        default_factory=lambda: os.cpu_count() or 1, ge=1, le=4096, description="CPU slots of the local cluster"
    )
    local_nodes: int = Field(default=1, ge=1, le=256, description="nodes that the local slots are spread over")
    local_gpus: dict[str, Annotated[int, Field(ge=0, le=64)]] = Field(
        default_factory=dict,
        description='GPUs of this machine by type, in the order of their indices, as JSON: {"a100": 2}',
    )
    local_memory_bytes: int | None = Field(default=None, ge=0, description="default: the machine's memory")
    local_python: Path | None = Field(
        default=None, description="interpreter that runs tasks; default: the service's own"
    )
    task_user: str | None = Field(
        default=None,
        min_length=1,
        description="user that tasks of the local cluster run as, for a service that is root: a name, or FIRST-LAST, "
        "user ids of which each job gets its own; default: the service's own user",
    )
    drain_seconds: float = Field(
        default=20.0, ge=0, le=86400, description="time that an unwanted task has to leave by itself"
    )
    unknown_tasks: Literal["keep", "stop"] = Field(
        default="keep", description="what becomes of running tasks whose job the database does not know"
    )
    max_task_failures: int = Field(
        default=6, ge=1, le=10000, description="task crashes without progress after which a job is failed"
    )
    retry_seconds: float = Field(
        default=Backoff().first_seconds,
        ge=0,
        le=Backoff().longest_seconds,
        description="wait before a job's first retry after an error of its code; the second waits ten times as long",
    )
    keep_seconds: float = Field(
        default=30 * 86_400.0,
        ge=60,
        le=1e9,
        description="telemetry, decisions and logs of jobs that ended longer ago are deleted",
    )
    price_per_gpu_hour: dict[str, Price] = Field(
        default_factory=dict, description='price of one GPU for one hour, by type, as JSON: {"V100": 2.48}'
    )
    price_per_core_hour: Price = Field(default=0.0, description="price of one CPU core for one hour")
    gpu_type_by: Literal["speed", "price"] = Field(
        default="speed", description="what decides between GPU types: the speed of a job's part, or speed per price"
    )
    learn_from_finished_jobs: bool = Field(
        default=True, description="predict jobs with what earlier jobs of the same task did"
    )
    stop_tasks: bool = Field(
        default=False, description="end all tasks when the service is stopped, instead of letting them train on"
    )
    log_format: Literal["console", "json"] = "console"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @field_validator("port", mode="before")
    @classmethod
    def _no_service_link(cls, port: object) -> object:
        """Kubernetes sets `OPTIMUS_PORT` to tcp://ADDRESS:PORT in pods beside a Service of the name `optimus`."""
        is_link = isinstance(port, str) and _LINKED_PORT.fullmatch(port)
        return cls.model_fields["port"].default if is_link else port

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        if name == cls.model_fields["policy"].default:
            return name
        # Commands that only read settings need none of them: to import them takes half a second.
        from optimus_scheduler.allocate.policies import policy_named

        return policy_named(name).name

    @field_validator("objective")
    @classmethod
    def _known_objective(cls, words: str) -> str:
        return str(Objective.of(words))

    @model_validator(mode="after")
    def _closed_by_default(self) -> Settings:
        if not is_loopback(self.host) and self.token is None:
            raise ValueError(
                f"host {self.host} is reachable from other machines, so users must be told apart: "
                "set OPTIMUS_TOKEN (at least 16 characters), or listen on 127.0.0.1"
            )
        pairs = ((self.token, self.previous_token, "TOKEN"), (self.secret, self.previous_secret, "SECRET"))
        for present, previous, name in pairs:
            if previous is not None and present is None:
                raise ValueError(f"OPTIMUS_PREVIOUS_{name} goes with OPTIMUS_{name}, which takes its place")
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("OPTIMUS_TLS_CERT and OPTIMUS_TLS_KEY go together: set both, or none")
        if self.tls_cert is not None and self.service_url is None:
            raise ValueError(
                "OPTIMUS_SERVICE_URL: with OPTIMUS_TLS_CERT name how tasks reach the service, by a name that the "
                "certificate is for: https://optimus.example:8080"
            )
        for name, secret in (
            ("OPTIMUS_TOKEN", self.token),
            ("OPTIMUS_PREVIOUS_TOKEN", self.previous_token),
            ("OPTIMUS_SECRET", self.secret),
            ("OPTIMUS_PREVIOUS_SECRET", self.previous_secret),
        ):
            if secret is not None and len(secret.get_secret_value()) < 16:
                raise ValueError(f"{name} must have at least 16 characters")
        if any(not _FERNET_KEY.fullmatch(key) for key in self.keys):
            raise ValueError(
                "OPTIMUS_ENCRYPTION_KEYS must be keys as `optimus secrets key` makes them (44 characters each), "
                "separated by commas"
            )
        if self.oidc is not None and self.token is None:
            raise ValueError(
                "OPTIMUS_OIDC__ISSUER: without OPTIMUS_TOKEN everybody is let in without signing in: set it, too"
            )
        if self.token is not None and not _HEADER_TEXT.fullmatch(self.token.get_secret_value()):
            raise ValueError(
                "OPTIMUS_TOKEN must be printable ASCII without blanks at its ends: no request can carry another"
            )
        return self

    @property
    def keys(self) -> tuple[str, ...]:
        """The encryption keys, the newest first."""
        given = "" if self.encryption_keys is None else self.encryption_keys.get_secret_value()
        return tuple(key.strip() for key in given.split(",") if key.strip())

    @property
    def member_limits(self) -> UserLimits:
        """The limits of a member who has none of their own."""
        return UserLimits(
            waiting_jobs=self.member_waiting_jobs,
            max_workers=self.member_max_workers,
            workers_together=self.member_workers_together,
            max_priority=self.member_max_priority,
            requests_per_second=self.member_requests_per_second,
        )

    @property
    def scheduling(self) -> SchedulerSettings:
        """The constants of a round."""
        return SchedulerSettings(
            drain_seconds=self.drain_seconds,
            retry_backoff=Backoff(self.retry_seconds),
            price_per_gpu_hour=MappingProxyType(dict(self.price_per_gpu_hour)),
            price_per_core_hour=self.price_per_core_hour,
            gpu_type_by=self.gpu_type_by,
            objective=Objective.of(self.objective),
        )

    @property
    def url(self) -> str:
        """The database URL in force."""
        return self.database_url or f"sqlite:///{(self.data_directory / 'optimus.db').resolve()}"
