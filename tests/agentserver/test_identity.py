"""Identities: key files, what is refused about them, and signatures."""

import os
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agentix.agentserver.credentials import Identity, TrustedKey
from agentix.agentserver.errors import IdentityError


def test_key_file_is_private_and_read_again(tmp_path: Path) -> None:
    made = Identity.generate(tmp_path / "key")
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600
    assert Identity.load(tmp_path / "key").public == made.public


def test_key_file_is_never_overwritten(tmp_path: Path) -> None:
    Identity.generate(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(IdentityError, match="File exists"):
        Identity.generate(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_key_that_others_may_use_is_refused(tmp_path: Path, mode: int) -> None:
    Identity.generate(tmp_path / "key")
    os.chmod(tmp_path / "key", mode)
    with pytest.raises(IdentityError, match=f"mode is {mode:04o}: run `chmod 600"):
        Identity.load(tmp_path / "key")


def test_what_is_no_ed25519_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(IdentityError, match="No such file"):
        Identity.load(path)
    path.write_text("no key")
    path.chmod(0o600)
    with pytest.raises(IdentityError, match="holds no private key in PEM"):
        Identity.load(path)
    other = ec.generate_private_key(ec.SECP256R1())
    path.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(IdentityError, match="is not an Ed25519 key"):
        Identity.load(path)


def test_public_key_survives_its_text(tmp_path: Path) -> None:
    identity = Identity.generate(tmp_path / "key")
    text = str(identity.public)
    (tmp_path / "friend.pub").write_text(text + "\n")
    assert TrustedKey.from_text(text) == identity.public
    assert TrustedKey.from_setting(text, tmp_path) == identity.public
    assert TrustedKey.from_setting("friend.pub", tmp_path) == identity.public
    assert text in repr(identity)


@pytest.mark.parametrize("text", ["", "x", "AAAA", "ab" * 32, "Ä"])
def test_text_that_is_no_public_key_is_refused(text: str) -> None:
    with pytest.raises(IdentityError, match="is no public key"):
        TrustedKey.from_text(text)


def test_signature_is_of_one_message_and_one_key(tmp_path: Path) -> None:
    signer, other = (Identity.generate(tmp_path / name) for name in ("a", "b"))
    signature = signer.sign(b"message")
    assert signer.public.verify(signature, b"message") is True
    assert signer.public.verify(signature, b"messagE") is False
    assert other.public.verify(signature, b"message") is False
    assert signer.public.verify(signature[:-1], b"message") is False
