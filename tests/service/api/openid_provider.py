"""A real OpenID provider for the tests: django-oauth-toolkit, in a process of its own.

`python -m tests.service.api.openid_provider FOLDER CALLBACK` serves until it is stopped, and prints its issuer. People
sign in with their name as password. Beyond OpenID Connect it answers `POST /test/people` (name, groups) and `POST
/test/rotate`, which gives it another key.
"""

from __future__ import annotations

import logging
import socketserver
import sys
import uuid
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import django
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings

CLIENT_ID = "optimus"
CLIENT_SECRET = "a secret of the service at the provider + &"
_PATHS = "tests.service.api.openid_provider_paths"
_APPS = ("auth", "contenttypes", "sessions", "oauth2_provider")
_LOGIN = (
    "<!doctype html><title>Provider</title><form method=post>{% csrf_token %}{{ form }}"
    "<input type=hidden name=next value='{{ next }}'><button>Enter</button></form>"
)
_DEVICE = (
    "<!doctype html><title>Device</title><form method=post>{% csrf_token %}{{ form }}"
    "<button name=action value=accept>Accept</button></form>"
)


def configure(folder: Path) -> None:
    """One Django project in this file."""
    templates = {
        "registration/login.html": _LOGIN,
        "oauth2_provider/device/user_code.html": _DEVICE,
        "oauth2_provider/device/accept_deny.html": _DEVICE,
        "oauth2_provider/device/device_grant_status.html": "done",
    }
    settings.configure(
        SECRET_KEY=uuid.uuid4().hex,
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=_PATHS,
        LOGIN_URL="/login/",
        USE_TZ=True,
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "provider.db"}},
        INSTALLED_APPS=[each if each == "oauth2_provider" else f"django.contrib.{each}" for each in _APPS],
        MIGRATION_MODULES=dict.fromkeys(_APPS),  # tables at once, without their history: seconds less
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {"loaders": [("django.template.loaders.locmem.Loader", templates)]},
            }
        ],
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_RSA_PRIVATE_KEY": new_key(),
            "OAUTH2_VALIDATOR_CLASS": f"{_PATHS}.Validator",
            "SCOPES": {"openid": "", "profile": "", "email": ""},
            "PKCE_REQUIRED": True,
            "DEVICE_FLOW_INTERVAL": 0,
        },
    )
    django.setup()


def new_key() -> str:
    """A private key, PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


class _Server(socketserver.ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: what goes wrong is in the answers."""


def main(folder: Path, callback: str) -> None:
    """Serve on a free port of loopback."""
    logging.disable(logging.WARNING)
    configure(folder)
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application
    from oauth2_provider.models import Application
    from oauth2_provider.settings import oauth2_settings

    call_command("migrate", run_syncdb=True, verbosity=0)
    # As at other providers, one client may sign people in by both ways.
    both = {Application.GRANT_AUTHORIZATION_CODE, Application.GRANT_DEVICE_CODE}
    Application.allows_grant_type = lambda _self, *wanted: bool(both & set(wanted))
    Application.objects.create(
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris=callback,
        skip_authorization=True,
        algorithm=Application.RS256_ALGORITHM,
    )
    with make_server("127.0.0.1", 0, get_wsgi_application(), _Server, _Quiet) as server:
        origin = f"http://127.0.0.1:{server.server_port}"
        oauth2_settings.OAUTH_DEVICE_VERIFICATION_URI = f"{origin}/o/device/"
        print(f"{origin}/o", flush=True)  # noqa: T201
        server.serve_forever()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
