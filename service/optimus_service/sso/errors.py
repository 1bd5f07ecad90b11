"""Why somebody is not signed in."""

from __future__ import annotations


class ProviderUnavailable(Exception):
    """The provider cannot be asked now, or answers what no provider answers."""


class NotAdmitted(Exception):
    """A person whom the provider does not vouch for, or whom the service does not let in."""

    def __init__(self, code: str, message: str) -> None:
        self.code = code
        """Tells the page which words to show."""
        super().__init__(message)


class NotGenuine(Exception):
    """A statement is not the provider's, or not about this sign-in. The message is for the log, not for users."""


class UnknownKey(NotGenuine):
    """None of the keys has the name that the token gives: the provider may have new ones."""
