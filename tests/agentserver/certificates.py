"""Certificates for the length of a test: an authority, and a server that it vouches for."""

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Certificate:
    """The files of a certificate for 127.0.0.1 that vouches for itself."""

    cert: Path
    key: Path

    def client(self) -> ssl.SSLContext:
        """Return the TLS settings of a client that trusts it, and nothing else."""
        return ssl.create_default_context(cafile=str(self.cert))


def make_certificate(directory: Path) -> Certificate:
    """Make a certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "organism")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Certificate(directory / "cert.pem", directory / "key.pem")
    made.cert.write_bytes(built.public_bytes(Encoding.PEM))
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    made.key.write_bytes(pem)
    made.key.chmod(0o600)
    return made
