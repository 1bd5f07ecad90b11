"""How people sign in with an OpenID provider. Part of the one settings object: `OPTIMUS_OIDC__*` (docs/sso.md)."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr

from optimus_contract.people import ProjectRole, Role
from optimus_service.settings.addresses import is_safe_url

ProjectName = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]


def _safe(url: str) -> str:
    if not is_safe_url(url):
        raise ValueError("must begin with https:// (http:// for addresses of this machine only)")
    return url


def _origin(url: str) -> str:
    parts = urlsplit(_safe(url))
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError("must be a scheme and a host, like https://optimus.example")
    return f"{parts.scheme}://{parts.netloc}"


class OidcSettings(BaseModel):
    """Every field is an environment variable: `OPTIMUS_OIDC__ISSUER` and so on; maps and lists as JSON."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    issuer: Annotated[str, AfterValidator(_safe)] = Field(
        description="the provider's name for itself, below which /.well-known/openid-configuration is"
    )
    client_id: str = Field(min_length=1, description="what the provider calls this service")
    client_secret: SecretStr | None = Field(
        default=None, description="the service's password at the provider; none: a public client"
    )
    public_url: Annotated[str, AfterValidator(_origin)] = Field(
        description="where browsers reach the service; the provider leads back to PUBLIC_URL/v1/sso/callback"
    )
    name: str = Field(default="single sign-on", min_length=1, max_length=60, description="what the page calls it")
    scopes: tuple[str, ...] = Field(
        default=("openid", "profile", "email"), description="what the provider is asked for"
    )
    user_claim: str = Field(default="preferred_username", min_length=1, description="what a user's name is made of")
    groups_claim: str = Field(default="groups", min_length=1, description="where the groups of a person are")
    roles: dict[str, Role] = Field(
        default_factory=dict, description='role of the members of a group, as JSON: {"ml-admins": "administrator"}'
    )
    projects: dict[str, dict[ProjectName, ProjectRole]] = Field(
        default_factory=dict, description='projects of a group, as JSON: {"ml-vision": {"vision": "member"}}'
    )
    session_seconds: float = Field(
        default=12 * 3600.0, ge=60, le=30 * 86_400, description="after which one signs in again on the page"
    )
    token_seconds: float = Field(
        default=7 * 86_400.0, ge=60, le=366 * 86_400, description="life of the token that `optimus login --sso` gets"
    )
    leeway_seconds: int = Field(default=60, ge=0, le=600, description="by how much the provider's clock may be wrong")

    @property
    def is_secure(self) -> bool:
        """Whether browsers reach the service by https only."""
        return self.public_url.startswith("https:")
