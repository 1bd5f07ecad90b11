"""Services behind https with a certificate that an authority of one's own signed, on real sockets."""

from __future__ import annotations

import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from tests.cli import builders
from tests.cli.conftest import Optimus, ScriptedService, _handler

from optimus_service.process.data_directory import CannotStart
from optimus_service.server import check_certificate
from optimus_service.settings import Settings
from optimus_workers.wire.ports import reserve_port


def openssl(folder: Path, *arguments: str) -> None:
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("certificates are made with openssl, which is not installed")
    subprocess.run([program, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ca.pem, and with server.pem and server.key for 127.0.0.1, signed by it."""
    folder = tmp_path_factory.mktemp("authority")
    new = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    openssl(folder, *new, "-x509", "-days", "2", "-subj", "/CN=ours", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(folder, *new, "-subj", "/CN=optimus", "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n")
    signing = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names", "-days", "2"]
    openssl(folder, "x509", "-req", "-in", "server.csr", "-out", "server.pem", *signing)
    return folder


@pytest.fixture
def behind_tls(authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedService]:
    for name in ("OPTIMUS_CA_CERT", "SSL_CERT_FILE", "SSL_CERT_DIR"):
        monkeypatch.delenv(name, raising=False)
    service = ScriptedService("")
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(service))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(authority / "server.pem", authority / "server.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    service.url = f"https://127.0.0.1:{server.server_address[1]}"
    service.on("GET", "/v1/jobs", {"jobs": [builders.job()], "next_cursor": None})
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield service
    server.shutdown()
    server.server_close()
    thread.join(60.0)


def test_an_unknown_authority_is_refused_with_what_to_set(behind_tls: ScriptedService, optimus: Optimus) -> None:
    done = optimus("list", "--url", behind_tls.url)
    assert done.exit_code == 1
    for word in ("is not trusted", "--ca-cert", "OPTIMUS_CA_CERT", "SSL_CERT_FILE"):
        assert word in done.stderr
    assert behind_tls.requests == []


@pytest.mark.parametrize("variable", ["OPTIMUS_CA_CERT", "SSL_CERT_FILE"])
def test_a_variable_names_the_authority(
    behind_tls: ScriptedService, optimus: Optimus, authority: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, str(authority / "ca.pem"))
    assert optimus("list", "--url", behind_tls.url).exit_code == 0


def test_an_option_names_the_authority(behind_tls: ScriptedService, optimus: Optimus, authority: Path) -> None:
    done = optimus("--ca-cert", str(authority / "ca.pem"), "list", "--url", behind_tls.url)
    assert (done.exit_code, done.stderr) == (0, "")
    assert optimus("list", "--url", behind_tls.url).exit_code == 1  # it held for that command only


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_is_none_is_bad_input(
    behind_tls: ScriptedService, optimus: Optimus, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    done = optimus("--ca-cert", str(file), "list", "--url", behind_tls.url)
    assert done.exit_code == 2
    assert f"--ca-cert (OPTIMUS_CA_CERT): {file}" in done.stderr


def test_the_name_in_the_certificate_counts(behind_tls: ScriptedService, optimus: Optimus, authority: Path) -> None:
    elsewhere = behind_tls.url.replace("127.0.0.1", "localhost")
    done = optimus("--ca-cert", str(authority / "ca.pem"), "list", "--url", elsewhere)
    assert done.exit_code == 1
    assert "is not trusted" in done.stderr


def test_the_service_itself_speaks_https(authority: Path, tmp_path: Path, optimus: Optimus) -> None:
    port = reserve_port("127.0.0.1")
    url = f"https://127.0.0.1:{port}"
    command = [sys.executable, "-m", "optimus_cli", "serve", "--port", str(port), "--service-url", url]
    files = ["--tls-cert", str(authority / "server.pem"), "--tls-key", str(authority / "server.key")]
    command += [*files, "--data-directory", str(tmp_path / "data")]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("OPTIMUS_")}
    with subprocess.Popen(command, env=ours, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            assert any("listening" in line for line in service.stderr)
            done = optimus("--ca-cert", str(authority / "ca.pem"), "list", "--url", url)
            context = ssl.create_default_context(cafile=authority / "ca.pem")
            with httpx.Client(verify=context, trust_env=False, timeout=60) as client:
                answer = client.get(f"{url}/healthz")
        finally:
            service.terminate()
            service.stderr.close() if service.stderr else None
    assert done.exit_code == 0, done.stderr
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_a_certificate_that_cannot_be_used_is_said(authority: Path, tmp_path: Path) -> None:
    openssl(authority, "pkey", "-in", "server.key", "-aes256", "-passout", "pass:word", "-out", "locked.key")
    for cert, key, says in (
        ("server.pem", "ca.key", "cannot be used"),
        ("nowhere.pem", "server.key", "No such file"),
        ("server.pem", "locked.key", "has a password"),
    ):
        settings = Settings(
            tls_cert=authority / cert, tls_key=authority / key, service_url="https://o", data_directory=tmp_path
        )
        with pytest.raises(CannotStart, match=says):
            check_certificate(settings)
    with pytest.raises(ValueError, match="OPTIMUS_TLS_KEY"):
        Settings(tls_cert=authority / "server.pem", service_url="https://o")
    with pytest.raises(ValueError, match="OPTIMUS_SERVICE_URL"):
        Settings(tls_cert=authority / "server.pem", tls_key=authority / "server.key")
