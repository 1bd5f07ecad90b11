"""Job tokens and the secret that they come from."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from optimus_service.process.data_directory import CannotStart
from optimus_service.process.job_tokens import JobTokens, is_job_token, load_secret
from optimus_service.settings import Settings

words = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)


def test_a_token_can_be_made_again_after_a_restart() -> None:
    token = JobTokens(b"secret").issue("job-1", "nonce")
    assert JobTokens(b"secret").verify(token, "job-1", "nonce")
    assert is_job_token(token)


@given(first=st.tuples(words, words), second=st.tuples(words, words))
def test_a_token_is_good_for_one_job_and_nonce_only(first: tuple[str, str], second: tuple[str, str]) -> None:
    tokens = JobTokens(b"secret")
    assert tokens.verify(tokens.issue(*first), *second) == (first == second)


@given(token=st.text())
def test_nobody_guesses_a_token(token: str) -> None:
    assert not JobTokens(b"secret").verify(token, "job-1", "nonce")


def test_another_secret_makes_other_tokens() -> None:
    assert not JobTokens(b"other").verify(JobTokens(b"secret").issue("job-1", "nonce"), "job-1", "nonce")


def test_nonces_differ() -> None:
    assert len({JobTokens(b"secret").new_nonce() for _ in range(100)}) == 100


def test_jobs_keep_their_tokens_when_the_secret_is_replaced() -> None:
    before, after = JobTokens(b"first"), JobTokens(b"second", b"first")
    old, new, earlier = before.new_nonce(), after.new_nonce(), "of-an-earlier-release"
    for nonce in (old, earlier):
        token = before.issue("job", nonce)
        assert after.issue("job", nonce) == token
        assert after.verify(token, "job", nonce)
        assert not JobTokens(b"second").verify(token, "job", nonce), "the previous secret was left out"
    token = after.issue("job", new)
    assert token == JobTokens(b"second").issue("job", new)
    assert not before.verify(token, "job", new)


def test_the_secret_is_made_once_for_the_owner_only(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path / "data")
    secret = load_secret(settings)
    assert len(secret) == 64
    assert load_secret(settings) == secret
    path = tmp_path / "data" / "secret.key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("left", [0, 3, 63])
def test_a_secret_that_was_cut_off_is_refused(tmp_path: Path, left: int) -> None:
    settings = Settings(data_directory=tmp_path)
    whole = load_secret(settings)
    (tmp_path / "secret.key").write_bytes(whole[:left])
    with pytest.raises(CannotStart, match=f"secret.key has {left} bytes instead of 64"):
        load_secret(settings)


def test_processes_that_start_together_agree_on_the_secret(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path)
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(load_secret, [settings] * 16))) == 1


def test_a_given_secret_needs_no_file(tmp_path: Path) -> None:
    settings = Settings(data_directory=tmp_path, secret="given from outside")
    assert load_secret(settings) == b"given from outside"
    assert list(tmp_path.iterdir()) == []


def test_an_empty_secret_is_refused() -> None:
    with pytest.raises(AssertionError):
        JobTokens(b"")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"token": "too-short-15char"[:15]}, "OPTIMUS_TOKEN must have at least 16"),
        ({"secret": "too-short"}, "OPTIMUS_SECRET must have at least 16"),
        ({"token": "blanks at the end cannot be sent  "}, "printable ASCII"),
        ({"token": "sixteen-characters-é"}, "printable ASCII"),
    ],
)
def test_weak_and_unusable_secrets_are_refused_without_being_repeated(given: dict[str, str], what: str) -> None:
    with pytest.raises(ValidationError, match=what) as raised:
        Settings(**given)  # type: ignore[arg-type]
    assert not any(secret in str(raised.value) for secret in given.values())
