"""Pushing an image archive to a registry (OCI distribution specification, version 1.1)."""

import gzip
import hashlib
import json
import os
import re
import shutil
import tarfile
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any
from urllib.parse import urljoin

from aiohttp import ClientError, ClientResponse, ClientSession, ClientTimeout

from agentix.namespace_sdk.build.archive import Archive
from agentix.namespace_sdk.errors import BuildError, RegistryLoginError

__all__ = ["HUB", "push", "split_reference"]

CONFIGURATION = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
HUB = "registry-1.docker.io"
"""Where references without a host are."""

HUB_NAMES = ("docker.io", "index.docker.io")
"""Hosts that references name, where the registry itself is `HUB`."""

ACCESS_DENIED = (401, 403)
"""The statuses that a registry answers to who may not do that."""

CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True)
class Blob:
    """A file that a registry keeps by its digest."""

    path: Path
    """The file here."""
    media_type: str
    """What it is."""

    def descriptor(self) -> dict[str, Any]:
        """Return its description in manifests."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {
            "mediaType": self.media_type,
            "digest": f"sha256:{digest}",
            "size": self.path.stat().st_size,
        }


async def push(archive: Archive, tag: str) -> str:
    """Push an image; what the registry has already is not sent again.

    The registry is the host of the tag, spoken to in plain HTTP where it is this machine. Logins
    are those of `docker login` that its configuration file holds.

    Args:
        archive: The image.
        tag: Its reference, with the registry's host.

    Returns:
        The digest of its manifest.

    Raises:
        BuildError: The registry cannot be reached, or refuses.
    """
    host, repository, version = split_reference(tag)
    local = host.partition(":")[0] in ("localhost", "127.0.0.1")
    url = f"{'http' if local else 'https'}://{host}/v2/{repository}"
    with TemporaryDirectory() as directory:
        blobs = _unpack(archive.path, Path(directory))
        timeout = ClientTimeout(total=None, connect=30)
        async with ClientSession(timeout=timeout) as session:
            client = RepositoryClient(session, url, _login(host))
            try:
                return await client.push(blobs, version)
            except RegistryLoginError as error:
                shown = "" if host == HUB else f" {host}"
                raise BuildError(f"{error}; `docker login{shown}` keeps a login for it") from error
            except (ClientError, TimeoutError) as error:
                raise BuildError(f"the registry {host} cannot be reached: {error}") from error


class RepositoryClient:
    """One repository of a registry.

    Args:
        session: What requests are made with.
        url: The repository's URL.
        login: The user's name and password in base 64, where there are any.
    """

    def __init__(self, session: ClientSession, url: str, login: str | None) -> None:
        self._session = session
        self._url = url
        self._login = login
        self._headers: dict[str, str] = {}

    async def push(self, blobs: list[Blob], version: str) -> str:
        """Send blobs, the configuration first, and the manifest that names them."""
        described = [blob.descriptor() for blob in blobs]
        for blob, descriptor in zip(blobs, described, strict=True):
            await self._upload(blob, descriptor["digest"])
        manifest = {
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": described[0],
            "layers": described[1:],
        }
        body = json.dumps(manifest, sort_keys=True).encode()
        await self._request(
            "PUT", f"{self._url}/manifests/{version}", body, {"Content-Type": MANIFEST}
        )
        return f"sha256:{hashlib.sha256(body).hexdigest()}"

    async def _upload(self, blob: Blob, digest: str) -> None:
        known = await self._request("HEAD", f"{self._url}/blobs/{digest}", missing=True)
        if known.status == 200:
            return
        begun = await self._request("POST", f"{self._url}/blobs/uploads/")
        target = urljoin(str(begun.url), begun.headers["Location"])
        joint = "&" if "?" in target else "?"
        headers = {"Content-Type": "application/octet-stream"}
        await self._request("PUT", f"{target}{joint}digest={digest}", blob.path, headers)

    async def _request(
        self,
        method: str,
        url: str,
        body: bytes | Path | None = None,
        headers: dict[str, str] | None = None,
        missing: bool = False,
    ) -> ClientResponse:
        """Make a request, once more with a login where the registry wants one."""
        answer = await self._send_request(method, url, body, headers)
        if answer.status == 401:
            await self._authenticate(answer.headers.get("WWW-Authenticate", ""))
            answer = await self._send_request(method, url, body, headers)
        if answer.status >= 400 and not (missing and answer.status == 404):
            reason = (await answer.text())[:500].strip()
            message = f"{method} {url} failed with status {answer.status}: {reason}"
            failure = RegistryLoginError if answer.status in ACCESS_DENIED else BuildError
            raise failure(message.removesuffix(": "))
        return answer

    async def _send_request(
        self,
        method: str,
        url: str,
        body: bytes | Path | None,
        headers: dict[str, str] | None,
    ) -> ClientResponse:
        file: IO[bytes] | bytes | None = body.open("rb") if isinstance(body, Path) else body
        sent = self._headers | (headers or {})
        async with self._session.request(method, url, data=file, headers=sent) as answer:
            await answer.read()
            return answer

    async def _authenticate(self, challenge: str) -> None:
        scheme, _, rest = challenge.partition(" ")
        parameters = dict(CHALLENGE.findall(rest))
        if scheme.lower() == "basic" and self._login is not None:
            self._headers = {"Authorization": f"Basic {self._login}"}
        elif scheme.lower() == "bearer" and "realm" in parameters:
            realm = parameters["realm"]
            wanted = {name: parameters[name] for name in ("service", "scope") if name in parameters}
            login = {} if self._login is None else {"Authorization": f"Basic {self._login}"}
            async with self._session.get(realm, params=wanted, headers=login) as answer:
                granted = await answer.json() if answer.status == 200 else {}
            token = granted.get("token") or granted.get("access_token") or ""
            self._headers = {"Authorization": f"Bearer {token}"}


def split_reference(tag: str) -> tuple[str, str, str]:
    """Split a reference into the registry's host, the repository and the tag."""
    repository, _, version = tag.rpartition(":")
    host, slash, rest = repository.partition("/")
    if slash and (host == "localhost" or "." in host or ":" in host):
        if host not in HUB_NAMES:
            return host, rest, version
        repository = rest
    return HUB, repository if "/" in repository else f"library/{repository}", version


def _unpack(archive: Path, directory: Path) -> list[Blob]:
    """Unpack the configuration and the layers of an archive; layers are compressed."""
    with tarfile.open(archive) as file:
        manifest = json.load(_member(file, "manifest.json"))[0]
        configuration = directory / "configuration.json"
        configuration.write_bytes(_member(file, manifest["Config"]).read())
        blobs = [Blob(configuration, CONFIGURATION)]
        for index, name in enumerate(manifest["Layers"]):
            layer = directory / f"layer-{index}.tar.gz"
            with (
                layer.open("wb") as raw,
                gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as compressed,
            ):
                shutil.copyfileobj(_member(file, name), compressed)
            blobs.append(Blob(layer, LAYER))
    return blobs


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    member = archive.extractfile(name)
    assert member is not None
    return member


def _login(host: str) -> str | None:
    """Return what `docker login` has kept for a registry."""
    directory = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker")
    key = "https://index.docker.io/v1/" if host == HUB else host
    try:
        return str(json.loads((directory / "config.json").read_text())["auths"][key]["auth"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
