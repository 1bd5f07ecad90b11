"""Users, their tokens, and the record of who did what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Body, Depends, Path, Query, Request, Response

from optimus_contract import answers
from optimus_contract.codec import read, write
from optimus_contract.people import MAX_TOKENS, RESERVED_USERS, NewToken, UserLimits, UserRights
from optimus_service.api.access import limits
from optimus_service.api.access.callers import Caller, Need
from optimus_service.api.http import examples
from optimus_service.api.http.body import StrictRoute
from optimus_service.api.http.problems import Problem, documented, invalid_field
from optimus_service.api.jobs.jobs import CursorQuery, LimitQuery
from optimus_service.api.services import AuditDep, CallerDep, Services, ServicesDep
from optimus_service.insight.format import moment, moment_or_none
from optimus_service.process.user_tokens import hash_of, new_token
from optimus_service.store.errors import TokenNotFound
from optimus_service.store.records import AuditRecord, TokenRecord, UserRecord

router = APIRouter(route_class=StrictRoute, tags=["people"])

UserName = Annotated[str, Path(min_length=1, max_length=63, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
Rights = Annotated[UserRights, Body(openapi_examples=examples.USERS)]
_Who = Annotated[str | None, Query(max_length=63, description="only what this caller did")]
_RIGHTS: Mapping[answers.Right, Need] = {
    "submit": Need.SUBMIT,
    "oversee": Need.OVERSEE,
    "operate": Need.OPERATE,
    "administer": Need.ADMINISTER,
    "make tokens": Need.OWN_TOKENS,
}
_Target = Annotated[
    str | None, Query(max_length=100, description="only what was done to this job, project, user or token")
]


@router.get("/v1/whoami")
def show_caller(caller: CallerDep, services: ServicesDep) -> answers.WhoAmI:
    """Who the caller is, and what the token is good for."""
    readable = caller.projects
    named = dict.fromkeys(readable or (), "viewer") | dict.fromkeys(caller.submits_to or (), "member")
    return answers.WhoAmI(
        name=caller.name,
        role=caller.role,
        scope=caller.scope,
        projects=None if readable is None else named,  # type: ignore[arg-type]  # the two words
        may=[right for right, need in _RIGHTS.items() if caller.has(need)],
        since=moment(caller.since) if caller.since else None,
        token_id=caller.token_id,
        limits=limits.of_caller(caller, services.settings),
    )


# --- users -----------------------------------------------------------------------------------------------------------


@router.get("/v1/users")
def list_users(services: ServicesDep) -> answers.UserList:
    """All users, by name."""
    return answers.UserList(users=[_user_body(each) for each in services.repository.people.users()])


@router.get("/v1/users/{name}", responses=documented(404))
def get_user(name: UserName, services: ServicesDep) -> answers.User:
    """One user."""
    return _user_body(services.repository.people.user(name))


@router.post("/v1/users/{name}", status_code=201, responses=documented(409))
def create_user(
    name: UserName, rights: Rights, services: ServicesDep, caller: CallerDep, audit: AuditDep
) -> answers.User:
    """Make a user. 409 when there is one of this name."""
    if name in RESERVED_USERS:
        raise invalid_field("name", f"{name} is what the service calls those without a user: choose another")
    record = UserRecord(
        name=name,
        kind=rights.kind,
        role=rights.role,
        projects=rights.projects,
        created_at=services.clock(),
        created_by=caller.name,
        limits=write(rights.limits, without_none=True),
    )
    audit.data |= _rights_data(rights)
    services.repository.people.create_user(record)
    return _user_body(record)


async def _says_rights(request: Request) -> None:
    """Raises `Problem` (422): the body would take all rights away without a word about them."""
    given = await request.json()
    if isinstance(given, dict) and "role" not in given and "projects" not in given:
        raise invalid_field(
            "body", 'say all that the user may do from now on: projects or role; {"projects": {}} takes all rights away'
        )


@router.put("/v1/users/{name}", responses=documented(404), dependencies=[Depends(_says_rights)])
def change_user(name: UserName, rights: Rights, services: ServicesDep, audit: AuditDep) -> answers.User:
    """Replace what a user may do: `projects` or `role` must be there. All tokens of the user follow at once."""
    audit.data |= _rights_data(rights)
    own = write(rights.limits, without_none=True)
    return _user_body(services.repository.people.change_user(name, rights.kind, rights.role, rights.projects, own))


@router.delete("/v1/users/{name}", status_code=204, responses=documented(404))
def remove_user(name: UserName, services: ServicesDep) -> None:
    """Remove a user and all tokens of the user. Jobs stay, with the name of their owner; a later user of that name does
    not own them."""
    services.repository.people.remove_user(name)


def _rights_data(rights: UserRights) -> dict[str, object]:
    own = write(rights.limits, without_none=True)
    return {"kind": rights.kind, "role": rights.role, "projects": dict(rights.projects), "limits": own}


def _user_body(user: UserRecord) -> answers.User:
    return answers.User(
        name=user.name,
        kind=user.kind,  # type: ignore[arg-type]  # checked when it was stored
        role=user.role,  # type: ignore[arg-type]
        projects=dict(user.projects),  # type: ignore[arg-type]
        limits=read(UserLimits, user.limits),
        created_at=moment(user.created_at),
        created_by=user.created_by,
        subject=user.subject,
    )


# --- tokens ----------------------------------------------------------------------------------------------------------


@router.get("/v1/tokens")
def list_tokens(
    services: ServicesDep,
    caller: CallerDep,
    user: Annotated[str | None, Query(max_length=63, description="only this user's")] = None,
) -> answers.TokenList:
    """The caller's tokens, or for an administrator those of all users; the newest first, without their secrets."""
    of_user = user if _is_administrator(caller) else caller.name
    if user not in (None, of_user):
        return answers.TokenList(tokens=[])
    return answers.TokenList(tokens=[token_body(each) for each in services.repository.people.tokens(of_user)])


@router.post("/v1/tokens", status_code=201, responses=documented(404, 409))
def create_token(
    wanted: Annotated[NewToken, Body(openapi_examples=examples.TOKENS)],
    services: ServicesDep,
    caller: CallerDep,
    audit: AuditDep,
    response: Response,
) -> answers.MadeToken:
    """Make a token. The answer has its secret, which the service does not keep: it cannot be shown again.

    It is for the caller, or by an administrator for anybody. One that a user's token makes does not outlive that token.
    """
    user = _user_for(wanted, caller)
    now = services.clock()
    expires_at = None if wanted.expires_seconds is None else now + wanted.expires_seconds
    if user == caller.name:
        _refuse_longer(services, caller, expires_at)
    token_id, secret = new_token()
    record = TokenRecord(
        id=token_id,
        user=user,
        name=wanted.name,
        hash=hash_of(secret),
        scope=wanted.scope,
        projects=None if wanted.projects is None else tuple(sorted(set(wanted.projects))),
        created_at=now,
        created_by=caller.name,
        expires_at=expires_at,
    )
    audit.made(token_id)
    audit.data |= {"user": user, "scope": wanted.scope, "projects": wanted.projects, "expires_at": expires_at}
    with services.repository.write() as tx:
        tx.people.create_token(record)
        n = tx.people.count_good_tokens(user, now)
        if n > MAX_TOKENS:
            raise Problem(409, f"{user} has {MAX_TOKENS} tokens that are good: revoke one that is not used any more")
    response.headers["Location"] = f"/v1/tokens/{token_id}"
    response.headers["Cache-Control"] = "no-store"
    return answers.MadeToken(token=token_body(record), secret=secret)


@router.delete("/v1/tokens/{token_id}", status_code=204, responses=documented(404))
def revoke_token(token_id: str, services: ServicesDep, caller: CallerDep, audit: AuditDep) -> None:
    """Revoke a token: from the next request on it is refused. Again is harmless."""
    token = services.repository.people.token(token_id)
    if token.user != caller.name and not _is_administrator(caller):
        raise TokenNotFound(token_id)
    audit.data |= {"user": token.user}
    services.repository.people.revoke_token(token_id, services.clock())


def _is_administrator(caller: Caller) -> bool:
    return caller.role == "administrator" and caller.within is None and caller.scope == "operate"


def _user_for(wanted: NewToken, caller: Caller) -> str:
    """Whose token it is to be.

    Raises:
        Problem: it may not be that one's.
    """
    if wanted.user is None and caller.token_id is None:
        raise invalid_field("user", f"name one: {caller.name} is no user, and has no tokens")
    user = wanted.user or caller.name
    if user != caller.name and not _is_administrator(caller):
        raise Problem(403, "tokens of others are made by administrators")
    return user


def _refuse_longer(services: Services, caller: Caller, expires_at: float | None) -> None:
    """Raise `Problem` (422) if the token would outlive the one that makes it, which could so go on for ever."""
    own = None if caller.token_id is None else services.repository.people.token(caller.token_id).expires_at
    if own is not None and (expires_at is None or expires_at > own):
        raise invalid_field(
            "expires_seconds", f"must be at most {own - services.clock():.0f}: as long as your own token"
        )


def token_body(token: TokenRecord) -> answers.Token:
    """A token as callers see it."""
    return answers.Token(
        id=token.id,
        user=token.user,
        name=token.name,
        scope=token.scope,  # type: ignore[arg-type]  # checked when it was stored
        projects=None if token.projects is None else list(token.projects),
        created_at=moment(token.created_at),
        created_by=token.created_by,
        expires_at=moment_or_none(token.expires_at),
        revoked_at=moment_or_none(token.revoked_at),
        last_used_at=moment_or_none(token.used_at),
    )


# --- who did what ----------------------------------------------------------------------------------------------------


@router.get("/v1/audit")
def list_audit(
    services: ServicesDep,
    who: _Who = None,
    target: _Target = None,
    cursor: CursorQuery = None,
    limit: LimitQuery = 50,
) -> answers.AuditList:
    """Who changed what, newest first."""
    page = services.repository.people.audit(who, target, cursor, limit)
    return answers.AuditList(entries=[_entry_body(each) for each in page.items], next_cursor=page.next_cursor)


def _entry_body(entry: AuditRecord) -> answers.AuditEntry:
    return answers.AuditEntry(
        id=entry.id,
        at=moment(entry.at),
        who=entry.who,
        token_id=entry.token_id,
        action=entry.action,
        target=entry.target,
        project=entry.project,
        data=dict(entry.data),
        request_id=entry.request_id,
    )
