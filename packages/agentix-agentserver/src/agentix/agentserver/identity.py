"""An identity: an Ed25519 key pair, whose private half is in a file that only its owner reads."""

import base64
import binascii
import os
import stat
from dataclasses import dataclass
from pathlib import Path

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

from agentix.agentserver.errors import AgentServerError

__all__ = ["Identity", "IdentityError", "TrustedKey"]

PUBLIC_BYTES = 32
SIGNATURE_BYTES = 64


class IdentityError(AgentServerError):
    """A key can not be used: its file is missing, open to others, or holds no Ed25519 key."""


@dataclass(frozen=True)
class TrustedKey:
    """The public half of somebody's identity."""

    raw: bytes
    """Its 32 bytes (RFC 8032)."""

    @classmethod
    def from_text(cls, text: str) -> "TrustedKey":
        """Reads what `str` of a key gives: base64 of the 32 bytes.

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
        """Reads a key that a configuration names: the key itself, or a file that holds it.

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
        """Tells whether the identity signed the message."""
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
        """Makes a new identity and writes it, with mode 0600, to a file that is not there yet.

        Raises:
            IdentityError: There is such a file, or it can not be written.
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
        """Reads a private key in PEM, PKCS #8.

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
        """Gives the 64 bytes of the signature."""
        return self._key.sign(message)

    def __repr__(self) -> str:
        return f"Identity({self.public})"
