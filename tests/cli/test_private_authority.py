"""Services behind https with a certificate that an authority of one's own signed, on real sockets."""

from __future__ import annotations

import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cli import builders
from tests.cli.conftest import Optimus, ScriptedService, _handler


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
