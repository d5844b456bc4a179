"""A server of bearer tokens, which a registry sends its clients to (distribution: token auth)."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from tests.agentserver.certificates import Certificate, make_certificate

ISSUER = "test-tokens"
SERVICE = "test-registry"


@dataclass
class TokenServer:
    """A server of tokens for whoever logs in; a registry believes its certificate.

    Args:
        certificate: What it signs with.
        login: The name and the password, with a colon between.
    """

    certificate: Certificate
    login: str
    url: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    """The queries of all requests with the right login."""

    def token(self, scope: str) -> str:
        """Sign a token for a scope such as `repository:team/counter:pull,push`."""
        kind, name, actions = scope.split(":")
        now = int(time.time())
        claims = {
            "iss": ISSUER,
            "aud": SERVICE,
            "sub": "user",
            "jti": "1",
            "iat": now,
            "nbf": now - 10,
            "exp": now + 300,
            "access": [{"type": kind, "name": name, "actions": actions.split(",")}],
        }
        der = load_pem_x509_certificate(self.certificate.cert.read_bytes()).public_bytes(
            Encoding.DER
        )
        chain = [base64.b64encode(der).decode()]
        header = {"typ": "JWT", "alg": "ES256", "x5c": chain}
        signed = f"{_text(header)}.{_text(claims)}"
        key = load_pem_private_key(self.certificate.key.read_bytes(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        pair = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"{signed}.{_digits(b''.join(part.to_bytes(32, 'big') for part in pair))}"

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        """Return the status and the JSON that a request gets."""
        if authorization != f"Basic {base64.b64encode(self.login.encode()).decode()}":
            return 401, {"errors": []}
        query = {name: values[0] for name, values in parse_qs(urlsplit(path).query).items()}
        self.asked.append(query)
        return 200, {"token": self.token(query["scope"])}


def _digits(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _text(content: dict[str, Any]) -> str:
    return _digits(json.dumps(content).encode())


@contextmanager
def token_server(directory: Path, login: str) -> Iterator[TokenServer]:
    """Serve tokens on a port of this machine."""
    tokens = TokenServer(make_certificate(directory), login)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = tokens.answer(self.path, self.headers.get("Authorization"))
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(json.dumps(content).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        tokens.url = f"http://127.0.0.1:{server.server_address[1]}/token"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield tokens
        finally:
            server.shutdown()
            thread.join()
