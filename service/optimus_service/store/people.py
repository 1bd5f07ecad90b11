"""Statements about users, their tokens, and the record of who did what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.orm import Session

from optimus_service.store.database.dialects import insert_for
from optimus_service.store.database.pages import DEFAULT_PAGE, check_limit, decode_cursor, make_page
from optimus_service.store.database.subject import Subject
from optimus_service.store.database.tables import AuditRow, Base, TokenRow, UserRow
from optimus_service.store.errors import TokenNotFound, UserExists, UserNotFound
from optimus_service.store.jobs import submission
from optimus_service.store.records import AuditRecord, MemberLimits, Page, TokenRecord, UserRecord

_USERS: Final = Base.metadata.tables["users"]
_MEMBER_LIMITS: Final = select(_USERS.c.name, _USERS.c.created_at, _USERS.c.limits).where(_USERS.c.role.is_(None))


class People(Subject):
    """Users, their tokens, and the record of who did what."""

    def users(self) -> list[UserRecord]:
        """All users, by name."""
        with self._read() as session:
            return [_user(row) for row in session.scalars(select(UserRow).order_by(UserRow.name))]

    def user(self, name: str) -> UserRecord:
        """One user.

        Raises:
            UserNotFound: there is none.
        """
        with self._read() as session:
            row = session.get(UserRow, name)
            if row is None:
                raise UserNotFound(name)
            return _user(row)

    def create_user(self, record: UserRecord) -> None:
        """Store a new user.

        Raises:
            UserExists: one has this name.
        """
        with self._write() as session:
            create_user(session, record)

    def change_user(
        self,
        name: str,
        kind: str,
        role: str | None,
        projects: Mapping[str, str],
        limits: Mapping[str, object] = MappingProxyType({}),
    ) -> UserRecord:
        """Replace what a user may do and take. All of the user's tokens follow at once.

        Raises:
            UserNotFound: there is none.
        """
        with self._write() as session:
            return change_user(session, name, kind, role, projects, limits)

    def sign_in(self, wanted: UserRecord, token: TokenRecord, entry: AuditRecord) -> UserRecord:
        """Let somebody in whom the OpenID provider vouches for: the user of that subject gets these rights and this
        token, and the record says so, all or nothing. Whoever is new becomes a user of this name.

        Raises:
            UserExists: new, and somebody else has the name.
        """
        with self._write() as session:
            row = _of_subject(session, wanted.subject)
            if row is None:
                try:
                    create_user(session, wanted)
                except UserExists:
                    row = _of_subject(session, wanted.subject)  # two first sign-ins of one person at the same moment
                    if row is None:
                        raise
            user = wanted
            if row is not None:  # limits are this service's, not the provider's
                user = change_user(session, row.name, wanted.kind, wanted.role, wanted.projects, row.limits or {})
            create_token(session, replace(token, user=user.name, created_by=user.name))
            add_audit(session, [replace(entry, who=user.name, data={**entry.data, "new": row is None})])
            return user

    def remove_user(self, name: str) -> None:
        """Delete a user with all tokens and idempotency keys. Jobs keep the name of their owner.

        Raises:
            UserNotFound: there is none.
        """
        with self._write() as session:
            session.execute(delete(TokenRow).where(TokenRow.user == name))
            submission.forget_keys(session, name)
            if session.execute(delete(UserRow).where(UserRow.name == name).returning(UserRow.name)).first() is None:
                raise UserNotFound(name)

    def tokens(self, of_user: str | None = None) -> list[TokenRecord]:
        """The tokens of a user, or (None) of all, the newest first; expired and revoked ones, too."""
        with self._read() as session:
            statement = select(TokenRow).order_by(TokenRow.created_at.desc(), TokenRow.id)
            if of_user is not None:
                statement = statement.where(TokenRow.user == of_user)
            return [_token(row) for row in session.scalars(statement)]

    def count_good_tokens(self, of_user: str, now: float) -> int:
        """The number of a user's tokens that are neither revoked nor expired."""
        with self._read() as session:
            not_over = TokenRow.expires_at.is_(None) | (TokenRow.expires_at > now)
            is_good = (TokenRow.user == of_user, TokenRow.revoked_at.is_(None), not_over)
            return session.scalar(select(func.count()).select_from(TokenRow).where(*is_good)) or 0

    def token(self, token_id: str) -> TokenRecord:
        """One token.

        Raises:
            TokenNotFound: there is none.
        """
        with self._read() as session:
            row = session.get(TokenRow, token_id)
            if row is None:
                raise TokenNotFound(token_id)
            return _token(row)

    def token_with_user(self, token_id: str) -> tuple[TokenRecord, UserRecord] | None:
        """A token, good or not, with whose it is; None: there is none."""
        with self._read() as session:
            statement = (
                select(TokenRow, UserRow).join(UserRow, UserRow.name == TokenRow.user).where(TokenRow.id == token_id)
            )
            found = session.execute(statement).first()
            return None if found is None else (_token(found[0]), _user(found[1]))

    def create_token(self, record: TokenRecord) -> None:
        """Store a new token.

        Raises:
            UserNotFound: its user is not there.
        """
        with self._write() as session:
            create_token(session, record)

    def revoke_token(self, token_id: str, now: float) -> None:
        """From now on the token is not good any more; one that was revoked before keeps its time."""
        with self._write() as session:
            statement = (
                update(TokenRow).where(TokenRow.id == token_id, TokenRow.revoked_at.is_(None)).values(revoked_at=now)
            )
            session.execute(statement)

    def note_use(self, token_id: str, now: float) -> None:
        """The token was used now."""
        with self._write() as session:
            note_use(session, token_id, now)

    def audit(
        self, who: str | None = None, target: str | None = None, cursor: str | None = None, limit: int = DEFAULT_PAGE
    ) -> Page[AuditRecord]:
        """Who did what, newest first: one caller's, or what was done to one job, project, user or token.

        Raises:
            InvalidCursor: the cursor was not handed out by this method.
        """
        check_limit(limit)
        with self._read() as session:
            statement = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit + 1)
            if who is not None:
                statement = statement.where(AuditRow.who == who)
            if target is not None:
                statement = statement.where(AuditRow.target == target)
            if cursor is not None:
                (last,) = decode_cursor("audit", cursor, (int,))
                statement = statement.where(AuditRow.id < last)
            return make_page("audit", session.scalars(statement).all(), limit, lambda row: (row.id,), _entry)


def member_limits(session: Session) -> list[MemberLimits]:
    """Of all users without a role."""
    return [MemberLimits(name, since, limits or {}) for name, since, limits in session.execute(_MEMBER_LIMITS)]


def create_user(session: Session, record: UserRecord) -> None:
    """See `People.create_user`."""
    values = {
        "name": record.name,
        "kind": record.kind,
        "role": record.role,
        "projects": dict(record.projects),
        "limits": dict(record.limits),
        "created_at": record.created_at,
        "created_by": record.created_by,
        "subject": record.subject,
    }
    statement = insert_for(session, UserRow).values(values).on_conflict_do_nothing().returning(UserRow.name)
    if session.execute(statement).first() is None:
        raise UserExists(record.name)


def change_user(
    session: Session, name: str, kind: str, role: str | None, projects: Mapping[str, str], limits: Mapping[str, object]
) -> UserRecord:
    """See `People.change_user`."""
    row = session.get(UserRow, name, with_for_update=True)
    if row is None:
        raise UserNotFound(name)
    row.kind, row.role, row.projects, row.limits = kind, role, dict(projects), dict(limits)
    return _user(row)


def _of_subject(session: Session, subject: str | None) -> UserRow | None:
    return session.scalar(select(UserRow).where(UserRow.subject == subject).with_for_update())


# --- tokens ----------------------------------------------------------------------------------------------------------


def create_token(session: Session, record: TokenRecord) -> None:
    """See `People.create_token`."""
    if session.get(UserRow, record.user, with_for_update={"key_share": True}) is None:
        raise UserNotFound(record.user)
    values = {
        "id": record.id,
        "user": record.user,
        "name": record.name,
        "hash": record.hash,
        "scope": record.scope,
        "projects": None if record.projects is None else list(record.projects),
        "created_at": record.created_at,
        "created_by": record.created_by,
        "expires_at": record.expires_at,
    }
    session.execute(insert(TokenRow).values(values))


def note_use(session: Session, token_id: str, now: float) -> None:
    """See `People.note_use`."""
    session.execute(update(TokenRow).where(TokenRow.id == token_id).values(used_at=now))


# --- who did what ----------------------------------------------------------------------------------------------------


def add_audit(session: Session, records: Sequence[AuditRecord]) -> None:
    """Add to the record of who did what."""
    rows = [
        {
            "at": record.at,
            "who": record.who,
            "token_id": record.token_id,
            "action": record.action,
            "target": record.target,
            "project": record.project,
            "data": dict(record.data),
            "request_id": record.request_id,
        }
        for record in records
    ]
    session.execute(insert(AuditRow), rows)


def _user(row: UserRow) -> UserRecord:
    return UserRecord(
        name=row.name,
        kind=row.kind,
        role=row.role,
        projects=row.projects,
        created_at=row.created_at,
        created_by=row.created_by,
        subject=row.subject,
        limits=row.limits or {},
    )


def _token(row: TokenRow) -> TokenRecord:
    return TokenRecord(
        id=row.id,
        user=row.user,
        name=row.name,
        hash=row.hash,
        scope=row.scope,
        projects=None if row.projects is None else tuple(row.projects),
        created_at=row.created_at,
        created_by=row.created_by,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
        used_at=row.used_at,
    )


def _entry(row: AuditRow) -> AuditRecord:
    return AuditRecord(
        id=row.id,
        at=row.at,
        who=row.who,
        token_id=row.token_id,
        action=row.action,
        target=row.target,
        project=row.project,
        data=row.data,
        request_id=row.request_id,
    )
