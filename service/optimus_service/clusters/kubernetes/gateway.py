"""The API server, as much of it as is needed: JSON in, JSON out, over the official client's transport.

The client's typed models are left out on purpose: they are strict about today's API, and servers are older or newer.
"""

from __future__ import annotations

import json
import math
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from optimus_service.clusters.base import ClusterUnavailable
from optimus_service.settings.kubernetes import KubernetesSettings

Json = dict[str, Any]
PAGE = 500
"""Objects in one answer to a list."""
_CONNECT_SECONDS = 5.0
_SILENCE_SECONDS = 2.0
"""After a call that was not answered, others fail at once for so long."""
_POOL_SIZE = 80
"""Connections that are kept: watches, and as many calls at a time as settings allow. They are opened when needed."""


class ApiRefused(Exception):
    """The API server said no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason

    @property
    def is_gone(self) -> bool:
        """What was to be resumed is too old: list again."""
        return self.status == 410

    @property
    def is_missing(self) -> bool:
        return self.status == 404

    @property
    def is_conflict(self) -> bool:
        return self.status == 409


class Gateway:
    """Calls to one API server. Thread-safe.

    Every call raises `ClusterUnavailable` when the server does not answer or answers 429 or 5xx, and `ApiRefused` when
    it says no.
    """

    def __init__(
        self,
        configuration: client.Configuration,
        call_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        connect: Callable[[client.Configuration], client.ApiClient] = client.ApiClient,
    ) -> None:
        """`connect` makes what sends the calls: the simulation of faults has its own."""
        configuration.retries = urllib3.Retry(0)  # rounds and watches try again by themselves
        configuration.connection_pool_maxsize = _POOL_SIZE
        configuration.keep_alive = True  # a watch through a cut network ends in minutes, not never
        self._client = connect(configuration)
        self._monotonic = monotonic
        self._call_seconds = call_seconds
        self._silent_at = -math.inf
        """When the server was last asked and did not answer (monotonic)."""

    @classmethod
    def connect(cls, settings: KubernetesSettings) -> Gateway:
        """Raises `ClusterUnavailable`: there is no usable configuration."""
        configuration = client.Configuration()
        try:
            if settings.kubeconfig is None:
                config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
            else:
                config.load_kube_config(  # type: ignore[no-untyped-call]
                    str(settings.kubeconfig), context=settings.context, client_configuration=configuration
                )
        except config.ConfigException as error:
            raise ClusterUnavailable(f"no access to a Kubernetes cluster is configured: {error}") from error
        return cls(configuration, settings.call_seconds)

    def get(self, path: str, query: Mapping[str, str] | None = None) -> Json:
        return self._json("GET", path, query)

    def get_text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        return self._call("GET", path, query).decode(errors="replace")

    def create(self, path: str, body: Json) -> Json:
        return self._json("POST", path, None, body)

    def delete(self, path: str, options: Json | None = None) -> None:
        self._call("DELETE", path, None, options or {})

    def patch(self, path: str, body: Json) -> Json:
        """A merge patch."""
        return self._json("PATCH", path, None, body, "application/merge-patch+json")

    def pages(self, path: str, query: Mapping[str, str]) -> Iterator[Json]:
        """The answers to a list, page by page; the resource version of each is where a watch goes on."""
        more: dict[str, str] = {}
        while True:
            page = self.get(path, {**query, "limit": str(PAGE), **more})
            yield page
            if not page["metadata"].get("continue"):
                return
            more = {"continue": page["metadata"]["continue"]}

    def watch(self, path: str, query: Mapping[str, str], version: str, seconds: int) -> Stream:
        """Changes since `version`, for `seconds` at most."""
        options = {
            **query,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
        }
        # A little longer than the server keeps it open: a cut connection is noticed by silence.
        response = self._open("GET", path, options, timeout=(_CONNECT_SECONDS, seconds + self._call_seconds))
        return Stream(response)

    def close(self) -> None:
        self._client.rest_client.close()

    # --- one call ---------------------------------------------------------------------------------------------------

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> Json:
        answer = json.loads(self._call(method, path, query, body, content_type))
        assert isinstance(answer, dict), "the API server answers with objects"
        return answer

    def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
    ) -> bytes:
        if self._monotonic() - self._silent_at < _SILENCE_SECONDS:
            # A round that starts thousands of tasks must not wait for each of them in turn.
            raise ClusterUnavailable("the Kubernetes API server did not answer a moment ago")
        timeout = (_CONNECT_SECONDS, self._call_seconds)
        response = self._open(method, path, query, body, content_type, timeout)
        try:
            data: bytes = response.read()
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise ClusterUnavailable(f"the answer of the Kubernetes API server broke off: {error}") from error
        finally:
            response.release_conn()
        return data

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Json | None = None,
        content_type: str = "application/json",
        timeout: tuple[float, float] = (_CONNECT_SECONDS, 60.0),
    ) -> urllib3.HTTPResponse:
        method, url, headers, content, _ = self._client.param_serialize(
            method,
            path,
            query_params=list((query or {}).items()),
            header_params={"Accept": "application/json", "Content-Type": content_type},
            body=body,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._client.call_api(method, url, headers, content, _request_timeout=timeout)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            self._silent_at = self._monotonic()
            raise ClusterUnavailable(f"the Kubernetes API server does not answer: {error}") from error
        except ApiException as error:
            raise ClusterUnavailable(f"the Kubernetes API server could not be asked: {error.reason}") from error
        response: urllib3.HTTPResponse = answer.response
        if not 200 <= response.status <= 299:
            raise _refusal(response)
        return response


class Stream:
    """The events of one watch: (type, object)."""

    def __init__(self, response: urllib3.HTTPResponse) -> None:
        self._response = response

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        """Ends when the server ends it or the connection breaks; raises `ApiRefused` on an error event."""
        for line in self._lines():
            event = json.loads(line)
            if event["type"] == "ERROR":
                status = event["object"]
                raise ApiRefused(status.get("code", 500), status.get("reason", ""), status.get("message", ""))
            yield event["type"], event["object"]

    def close(self) -> None:
        """From any thread: whoever reads is at the end at once."""
        connection = getattr(self._response, "connection", None)
        sock = getattr(connection, "sock", None)
        if sock is not None:
            with suppress(OSError):
                # Not `sock.shutdown`: on a TLS socket that first drops the decryption, and the reader gets raw bytes.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)

    def _lines(self) -> Iterator[bytes]:
        rest = b""
        try:
            for chunk in self._response.stream(amt=None):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line for line in lines if line.strip())
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ClusterUnavailable(f"a watch of the Kubernetes API server broke off: {error}") from error
        finally:
            self._response.close()


def _refusal(response: urllib3.HTTPResponse) -> Exception:
    """What is wrong with the answer: a refusal, or a server that cannot answer now."""
    try:
        status = json.loads(response.read())
    except (ValueError, urllib3.exceptions.HTTPError, OSError):
        status = {}
    finally:
        response.release_conn()
    message = str(status.get("message") or response.reason)
    if response.status == 429 or response.status >= 500:
        return ClusterUnavailable(f"the Kubernetes API server answers {response.status}: {message}")
    return ApiRefused(response.status, str(status.get("reason") or ""), message)
