"""Credentials: the keys of organisms, and the users with their one-time codes."""

import base64
import binascii
import hmac
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pyotp
import yaml
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
)

from agentix.agentserver.errors import IdentityError, UsersError
from agentix.agentserver.spec import read_yaml, reasons

__all__ = [
    "GatewayUser",
    "Identity",
    "TrustedKey",
    "UserName",
    "Users",
    "new_secret",
    "read_users",
]

logger = logging.getLogger(__name__)


PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64


@dataclass(frozen=True)
class TrustedKey:
    """The public half of somebody's identity."""

    raw: bytes
    """Its 32 bytes (RFC 8032)."""

    @classmethod
    def from_text(cls, text: str) -> "TrustedKey":
        """Read what `str` of a key gives: base64 of the 32 bytes.

        Raises:
            IdentityError: The text is not that.
        """
        try:
            raw = base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise IdentityError(f"{text!r} is no public key: it is not base64") from error
        if len(raw) != PUBLIC_BYTES:
            raise IdentityError(f"{text!r} is no public key: it has {len(raw)} bytes, not 32")
        return cls(raw)

    @classmethod
    def from_setting(cls, text: str, directory: Path) -> "TrustedKey":
        """Read a key that a configuration names: the key itself, or a file that holds it.

        Raises:
            IdentityError: It is neither.
        """
        path = directory / text
        try:
            is_file = path.is_file()
        except OSError:
            is_file = False
        return cls.from_text(path.read_text(encoding="utf-8") if is_file else text)

    def __str__(self) -> str:
        return base64.b64encode(self.raw).decode()

    def verify(self, signature: bytes, message: bytes) -> bool:
        """Return whether the identity signed the message."""
        if len(signature) != SIGNATURE_BYTES:
            return False
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class Identity:
    """A private key; its `repr` does not show it."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def generate(cls, path: Path) -> "Identity":
        """Make a new identity and write it, with mode 0600, to a file that is not there yet.

        Raises:
            IdentityError: There is such a file, or it cannot be written.
        """
        key = Ed25519PrivateKey.generate()
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise IdentityError(f"no identity was written to {path}: {error.strerror}") from error
        with os.fdopen(number, "wb") as file:
            file.write(pem)
        return cls(key)

    @classmethod
    def load(cls, path: Path) -> "Identity":
        """Read a private key in PEM, PKCS #8.

        Raises:
            IdentityError: The file is missing, others may read it, or it holds no Ed25519 key.
        """
        try:
            number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise IdentityError(f"no identity at {path}: {error.strerror}") from error
        with os.fdopen(number, "rb") as file:
            mode = stat.S_IMODE(os.fstat(number).st_mode)
            if mode & 0o077:
                raise IdentityError(
                    f"others may use {path}, whose mode is {mode:04o}: run `chmod 600 {path}`"
                )
            pem = file.read()
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise IdentityError(f"{path} holds no private key in PEM: {error}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise IdentityError(f"the key in {path} is not an Ed25519 key")
        return cls(key)

    @property
    def public(self) -> TrustedKey:
        """The half that others may know."""
        return TrustedKey(self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes of the signature."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.public})"


WINDOW = 1
"""Steps of 30 seconds that a code may be early or late."""

FREE_FAILURES = 3
"""Failures of one user after which each further one doubles the time to wait."""

FIRST_WAIT = 1.0
LONGEST_WAIT = 300.0

CODE_DIGITS = 6


def _base32(secret: str) -> str:
    """Refuse what is not base32, or is shorter than RFC 4226 asks for."""
    try:
        size = len(base64.b32decode(secret + "=" * (-len(secret) % 8), casefold=True))
    except ValueError as error:
        raise ValueError("totp_secret is not base32") from error
    if size < 16:
        raise ValueError(f"totp_secret has {size * 8} bits, and must have 128 (RFC 4226, R6)")
    return secret


class GatewayUser(BaseModel):
    """One user."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    totp_secret: Annotated[str, AfterValidator(_base32)] = Field(repr=False)
    """The shared secret in base32, of at least 128 bits (RFC 6238)."""
    allowed_root_tags: Literal["*"] | tuple[str, ...] = ()
    """The root tags of payloads that the user may send, or `*` for any."""
    admin: bool = False
    """Whether meta queries of the level `admin` are answered."""

    def may_send(self, root: str) -> bool:
        """Return whether a payload with this root tag is allowed."""
        return self.allowed_root_tags == "*" or root in self.allowed_root_tags


UserName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""The name of a user: an XML name without a dot, so that it is no other organism's."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    users: dict[UserName, GatewayUser]


def read_users(path: Path, now: Callable[[], float] = time.time) -> "Users":
    """Read `users.yaml`.

    Raises:
        UsersError: The file is missing or malformed; secrets are not shown.
    """
    try:
        content = read_yaml(path)
    except OSError as error:
        raise UsersError(f"no users at {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem = f": {error.problem}" if isinstance(error, yaml.MarkedYAMLError) else ""
        raise UsersError(f"{path} is not YAML{problem}") from error
    try:
        return Users(_File.model_validate(content).users, now)
    except ValidationError as error:
        raise UsersError(f"malformed users in {path}: {reasons(error, (GatewayUser,))}") from error


def new_secret() -> str:
    """Return a fresh secret of 160 bits for a user."""
    return pyotp.random_base32()


@dataclass
class _UserRecord:
    """What is remembered of one user's attempts."""

    last_step: int = -1
    failures: int = 0
    closed_until: float = 0.0


class Users:
    """Checks codes: each is good once, in its step and one beside it, and failures slow down.

    Args:
        users: The users by their names.
        now: Gives the seconds since 1970.
    """

    def __init__(
        self, users: Mapping[str, GatewayUser], now: Callable[[], float] = time.time
    ) -> None:
        self._users = dict(users)
        self._now = now
        self._records = {name: _UserRecord() for name in users}
        self._nobody = GatewayUser(totp_secret=new_secret())

    def __getitem__(self, name: str) -> GatewayUser:
        return self._users[name]

    def __contains__(self, name: object) -> bool:
        return name in self._users

    def authenticate(self, name: str, code: str) -> GatewayUser | None:
        """Check a code, and take it.

        An unknown name costs as much time as a known one. While a user waits after failures no
        code is taken, not even a right one.

        Returns:
            The user; `None` where the code is wrong, used, or came too soon after failures.
        """
        now = self._now()
        user = self._users.get(name, self._nobody)
        record = self._records.get(name, _UserRecord())
        step = _matching_step(user.totp_secret, code, now)
        if name not in self._users or now < record.closed_until:
            return None
        if step is None or step <= record.last_step:
            self._fail(name, record, now)
            return None
        record.last_step, record.failures = step, 0
        return user

    def _fail(self, name: str, record: _UserRecord, now: float) -> None:
        record.failures += 1
        beyond = record.failures - FREE_FAILURES
        if beyond >= 0:
            wait = min(FIRST_WAIT * 2.0 ** min(beyond, 32), LONGEST_WAIT)
            record.closed_until = now + wait
            logger.warning(
                "user %s failed %d times to log in and is closed for %g s",
                name,
                record.failures,
                wait,
            )


def _matching_step(secret: str, code: str, now: float) -> int | None:
    """Find the step that a code belongs to, comparing with all of the window in any case."""
    totp = pyotp.TOTP(secret)
    given = code.encode()
    current = totp.timecode(now)
    found = None
    for step in range(max(current - WINDOW, 0), current + WINDOW + 1):
        if hmac.compare_digest(totp.generate_otp(step).encode(), given):
            found = step
    return found if len(given) == CODE_DIGITS else None
