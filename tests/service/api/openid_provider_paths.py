"""What the tests' OpenID provider answers (`openid_provider`). Imported by Django, once it is configured."""

from __future__ import annotations

import json
import time
from typing import Any

from django.contrib.auth.models import Group, User
from django.contrib.auth.views import LoginView
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import include, path
from django.views.decorators.csrf import csrf_exempt
from oauth2_provider.models import get_device_grant_model
from oauth2_provider.oauth2_validators import OAuth2Validator
from oauth2_provider.settings import oauth2_settings
from oauth2_provider.views import ConnectDiscoveryInfoView, DeviceAuthorizationView
from tests.service.api.openid_provider import new_key


class Validator(OAuth2Validator):  # type: ignore[misc]  # untyped
    """Says a person's groups, and gives ID tokens in the device flow, too, as other providers do."""

    oidc_claim_scope = None  # all claims, whatever was asked for

    def get_additional_claims(self, request: Any) -> dict[str, Any]:
        return {
            "preferred_username": request.user.username,
            "groups": [group.name for group in request.user.groups.all()],
        }

    def validate_device_code(self, _client_id: str, device_code: str, request: Any, *_: Any) -> str:
        """What oauthlib 4 asks for and the toolkit has not yet."""
        grant = get_device_grant_model().objects.get(device_code=device_code)
        request.user, request.scopes = grant.user, grant.scope.split()
        return str(grant.status)

    def save_token(self, token: dict[str, Any], request: Any, *args: Any, **options: Any) -> None:
        super().save_token(token, request, *args, **options)
        if (request.grant_type or "").endswith("device_code"):
            about = {"aud": request.client_id, "iat": int(time.time())}
            token["id_token"] = self.finalize_id_token(about, token, None, request)
            get_device_grant_model().objects.filter(device_code=request.device_code).delete()


class Discovery(ConnectDiscoveryInfoView):  # type: ignore[misc]  # untyped
    """Names the device flow, too, which the toolkit has and does not tell of."""

    def get(self, request: HttpRequest, *args: Any, **options: Any) -> HttpResponse:
        found = json.loads(super().get(request, *args, **options).content)
        here = request.build_absolute_uri("/o/device-authorization/")
        return JsonResponse({**found, "device_authorization_endpoint": here})


class Devices(DeviceAuthorizationView):  # type: ignore[misc]  # untyped
    """oauthlib 4 answers with the scope, too, which the toolkit does not expect yet."""

    def create_device_authorization_response(self, request: HttpRequest) -> Any:
        headers, response, status = super().create_device_authorization_response(request)
        if isinstance(response, dict):
            response.pop("scope", None)
        return headers, response, status


@csrf_exempt  # type: ignore[untyped-decorator]
def person(request: HttpRequest) -> HttpResponse:
    """Make somebody, or change their groups."""
    wanted = json.loads(request.body)
    user, is_new = User.objects.get_or_create(username=wanted["name"])
    if is_new:
        user.set_password(wanted["name"])
        user.save()
    user.groups.set([Group.objects.get_or_create(name=each)[0] for each in wanted["groups"]])
    return HttpResponse(status=204)


@csrf_exempt  # type: ignore[untyped-decorator]
def rotate(_request: HttpRequest) -> HttpResponse:
    """Sign with a new key from now on."""
    oauth2_settings.OIDC_RSA_PRIVATE_KEY = new_key()
    return HttpResponse(status=204)


urlpatterns = [
    path("test/people", person),
    path("test/rotate", rotate),
    path("login/", LoginView.as_view()),
    path("o/.well-known/openid-configuration", Discovery.as_view()),
    path("o/device-authorization/", Devices.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]
