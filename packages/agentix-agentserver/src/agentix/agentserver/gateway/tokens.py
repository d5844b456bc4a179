"""Tokens: who asks at the Unix socket, as whoever started the organism has granted it."""

import asyncio
import hashlib
import secrets
from dataclasses import dataclass, field

from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.principal import Principal

__all__ = ["Grant", "TokenError", "Tokens"]

TOKEN_BYTES = 32
"""Bytes of chance in a token."""


class TokenError(AgentServerError):
    """A token is not good, or can not be had; no message shows one."""


@dataclass(frozen=True, eq=False)
class Grant:
    """What a token is good for."""

    principal: Principal
    """Who asks by it."""
    revoked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is good no longer, which ends what it is being answered."""


class Tokens:
    """The tokens of one organism, one for a principal; only their digests are kept."""

    def __init__(self) -> None:
        self._grants: dict[bytes, Grant] = {}

    def grant(self, principal: Principal) -> str:
        """Makes a token, in place of one that the principal had."""
        self.revoke(principal.name)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._grants[_digest(token)] = Grant(principal)
        return token

    def revoke(self, name: str) -> bool:
        """Ends the token of a principal.

        Returns:
            Whether it had one.
        """
        for digest, grant in self._grants.items():
            if grant.principal.name == name:
                del self._grants[digest]
                grant.revoked.set()
                return True
        return False

    def find(self, token: str) -> Grant:
        """Gives what a token is good for.

        The digests are looked up, so the time that this takes tells nothing of any token.

        Raises:
            TokenError: It is not good.
        """
        grant = self._grants.get(_digest(token))
        if grant is None:
            raise TokenError(
                "the token is missing, wrong or revoked: whoever started the organism grants one"
            )
        return grant


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
