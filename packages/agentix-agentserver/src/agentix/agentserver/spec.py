"""`organism.yaml`: its keys as models, and what is wrong with a file in its own words."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails
from yaml.composer import ComposerError

from agentix.agentserver.errors import RegistrationError, SpecError
from agentix.agentserver.names import check_listener_name

__all__ = [
    "GatewaySpec",
    "JournalSpec",
    "LimitsSpec",
    "ListenerSpec",
    "LlmSpec",
    "MetaSpec",
    "OobSpec",
    "OrganismSection",
    "OrganismSpec",
    "RuntimeSpec",
    "TlsSpec",
    "WorkersSpec",
    "load_spec",
    "parse_spec",
    "read_yaml",
    "reasons",
]


WRONG_TYPES = {
    "finite_number": "a number is needed here that is neither infinite nor .nan",
    "dict_type": "keys with values are needed here",
    "model_type": "keys with values are needed here, such as `name: library`",
    "string_type": "a text is needed here; put quotes around what YAML takes for something else",
    "tuple_type": "a list is needed here, such as [one, two]",
}


def reasons(error: ValidationError, models: Iterable[type[BaseModel]]) -> str:
    """Return what is wrong, and where, one reason after the other; what was given is not shown.

    Args:
        error: Why the data is refused.
        models: The models whose keys may have been meant.
    """
    names = sorted({name for model in models for name in model.model_fields})
    details = error.errors(include_input=False, include_url=False)
    return "; ".join(_reason(detail, names) for detail in details)


def _reason(detail: ErrorDetails, names: list[str]) -> str:
    place = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"{place}: there is no such key{_meant(str(detail['loc'][-1]), names)}"
    message = WRONG_TYPES.get(detail["type"], detail["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _meant(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f"; is {close[0]!r} meant?" if close else ""


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that says two things about one key, where YAML takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} is given twice"
                raise ComposerError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return node


def read_yaml(path: Path) -> object:
    """Read the one document of a file.

    Raises:
        OSError: The file cannot be read.
        UnicodeDecodeError: It is not UTF-8.
        yaml.YAMLError: It is not YAML, gives a key twice, or asks for more than plain data.
    """
    loader = _Loader(path.read_text(encoding="utf-8"))
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


NAMESPACE_PEER = re.compile(r"ns:[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
DOTTED_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
OWN_PACKAGE = "agentix.agentserver"


def _name(value: str) -> str:
    """Refuse what is no name, or reserved."""
    try:
        check_listener_name(value)
    except RegistrationError as error:
        raise ValueError(str(error)) from error
    return value


def _peer(value: str) -> str:
    """Refuse a peer that is neither a name nor `ns:package.function`."""
    if value.startswith("ns:"):
        if not NAMESPACE_PEER.fullmatch(value):
            raise ValueError(f"{value!r} is no function: write ns:package.function")
        return value
    return _name(value)


def _function(value: str) -> str:
    """Refuse what is no function of a namespace."""
    if not DOTTED_PATH.fullmatch(value) or value.count(".") != 1:
        raise ValueError(f"{value!r} is no function of a namespace: write package.function")
    return value


def _import_path(value: str) -> str:
    """Refuse what is no absolute dotted path to a name in a module."""
    if not DOTTED_PATH.fullmatch(value):
        raise ValueError(f"{value!r} is no import path: write package.module.name")
    return value


def _text(value: str) -> str:
    """Refuse a text of nothing but white space."""
    if not value.strip():
        raise ValueError("a description is needed: say in a sentence what the listener is for")
    return value


def _inside(value: str) -> str:
    """Refuse a relative path that leaves the directory of the file."""
    if ".." in PurePosixPath(value).parts:
        raise ValueError(f"{value!r} leaves the directory of organism.yaml: write it without ..")
    return value


def _http_url(value: str) -> str:
    """Refuse what is no address of an HTTP server."""
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise ValueError(f"{value!r} is no address: write http://host:port/path")
    return value


def _wss_url(value: str) -> str:
    """Refuse what is no address of a WebSocket server behind TLS."""
    parts = urlsplit(value)
    if parts.scheme != "wss" or not parts.hostname:
        raise ValueError(f"{value!r} is no address of a gateway: write wss://host:port")
    return value


def _several(value: object) -> object:
    """Take one word for a list of one."""
    return (value,) if isinstance(value, str) else value


FunctionName = Annotated[str, AfterValidator(_function)]
Name = Annotated[str, AfterValidator(_name)]
Peer = Annotated[str, AfterValidator(_peer)]
ImportPath = Annotated[str, AfterValidator(_import_path)]
Description = Annotated[str, AfterValidator(_text)]
InsidePath = Annotated[str, AfterValidator(_inside)]
Allowed = Literal["admin", "authenticated", "none"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class TlsSpec(_Section):
    """The certificate of the WebSocket gateway."""

    cert: InsidePath
    """The file of the certificate chain, PEM."""
    key: InsidePath
    """The file of the private key, PEM."""


class OrganismSection(_Section):
    """Who the organism is, and where it is reached."""

    name: Name
    """The name of the organism."""
    identity: InsidePath | None = None
    """The file of the Ed25519 private key, mode 0600."""
    port: int = Field(default=8765, ge=0, le=65535)
    """The port of the WebSocket gateway; 0 takes a free one."""
    bind: str = "127.0.0.1"
    """The address of the WebSocket gateway."""
    tls: TlsSpec | None = None
    """The gateway's certificate; without it there is no gateway."""
    users: InsidePath | None = None
    """The file of users and their codes, `users.yaml`."""
    authentication_seconds: float = Field(default=15.0, gt=0)
    """Seconds that a connection may take to log in."""


class OobSpec(_Section):
    """The out-of-band channel: signed privileged messages."""

    enabled: bool = False
    """Whether there is one; without it the structure is fixed until the next start."""
    bind: Literal["127.0.0.1", "::1"] = "127.0.0.1"
    """The loopback address that it listens at."""
    port: int = Field(default=8766, ge=0, le=65535)
    """Its port; 0 takes a free one."""
    unix_socket: InsidePath | None = None
    """A Unix socket instead of the port; only the organism's own user may connect."""


class MetaSpec(_Section):
    """Who is answered when it asks about capabilities."""

    enabled: bool = True
    """Whether meta queries are answered at all."""
    allow_list_capabilities: bool = True
    """Whether the names that the asker may call are listed."""
    allow_schema_requests: Allowed = "authenticated"
    """Who gets a listener's XSD."""
    allow_example_requests: Allowed = "authenticated"
    """Who gets a listener's example."""
    allow_prompt_requests: Allowed = "admin"
    """Who gets a listener's prompt fragment."""
    allow_remote: bool = False
    """Whether other organisms are answered too."""


class JournalSpec(_Section):
    """The write-ahead log, which is the audit log too."""

    path: InsidePath = "journal"
    """The directory of its files."""
    sync: Literal["process", "disk"] = "process"
    """What an acknowledged message survives: the end of the process, or of the machine."""
    segment_bytes: int = Field(default=1 << 24, ge=1024)
    """Bytes of a file, after which the next begins; a start reads the last one."""
    keep_bytes: int | None = Field(default=None, ge=0)
    """Bytes of earlier files that are kept, of which the last always is; absent for all."""


class LimitsSpec(_Section):
    """What the pump bounds."""

    message_bytes: int = Field(default=1 << 20, ge=1024)
    """Bytes of a message, and of a handler's answer."""
    handler_seconds: float = Field(default=30.0, gt=0)
    """Seconds that a handler may take for one message."""
    concurrent_handlers: int = Field(default=256, ge=1)
    """Handlers that run at once."""
    concurrent_per_listener: int = Field(default=64, ge=1)
    """Threads of one listener that run at once."""
    iterations: int = Field(default=10_000, ge=1)
    """Messages that a listener handles in one thread for one message from its caller."""
    depth: int = Field(default=32, ge=1)
    """Listeners on the path of a thread."""
    subscriber_events: int = Field(default=10_000, ge=1)
    """Events that wait for a slow subscriber before it is told of a gap."""


class WorkersSpec(_Section):
    """What the workers that handlers run in may use."""

    live: int = Field(default=256, ge=1)
    """Workers that live at once; the one idle for longest makes room for the next."""
    spares: int = Field(default=2, ge=0)
    """Workers that are forked and held ahead of need."""
    idle_seconds: float = Field(default=600.0, gt=0)
    """Seconds without a message after which a worker is ended, and its memory with it."""
    memory_bytes: int = Field(default=1 << 30, ge=1 << 26)
    """The address space of a worker."""
    cpu_seconds: int = Field(default=3600, ge=1)
    """The processor time of a worker over its life."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads that a worker may have."""
    open_files: int = Field(default=64, ge=16)
    """Files that a worker may have open."""
    file_bytes: int = Field(default=1 << 24, ge=0)
    """The largest file that a worker may write, and what its scratch directory holds."""
    readable: tuple[InsidePath, ...] = ()
    """Further files and directories that workers may read."""


class ListenerSpec(_Section):
    """A listener: a name, a payload class, a handler and what it is for.

    Example:
        ```python
        from agentix.agentserver import ListenerSpec

        adder = ListenerSpec(
            name="calculator.add",
            payload_class="calculator.AddPayload",
            handler="calculator.add",
            description="Adds two numbers.",
        )
        ```
    """

    name: Name
    """Its name: words joined by dots."""
    payload_class: ImportPath
    """The dotted path of the `@xmlify` class that it accepts."""
    handler: ImportPath
    """The dotted path of its `async def`."""
    description: Description
    """What it is for, in words that a model understands."""
    agent: bool = False
    """Whether it is told its own name, and gets replies as `core.Reply`."""
    peers: tuple[Peer, ...] = ()
    """The listeners, groups, gateways and functions that it may call."""
    broadcast: bool = False
    """Whether it also answers the root tag of its group: its name without the last segment."""
    reply_class: Annotated[tuple[ImportPath, ...], BeforeValidator(_several)] = ()
    """The classes that it takes replies as."""
    handler_seconds: float | None = Field(default=None, gt=0)
    """Seconds that it may take for one message; the limit of the organism where it is absent."""
    iterations: int | None = Field(default=None, ge=1)
    """Messages that it handles in one thread for one message from its caller."""
    tokens: int | None = Field(default=None, ge=1)
    """Tokens that it may use in one thread."""
    prompt: str | None = None
    """The instructions of a listener that a model answers for."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.broadcast and self.agent:
            raise ValueError(f"{self.name}: an agent has a root tag of its own; drop broadcast")
        if self.broadcast and "." not in self.name:
            raise ValueError(f"{self.name}: a broadcast listener is named group.member")
        return self


class GatewaySpec(_Section):
    """Another organism that listeners may name as a peer."""

    name: Name
    """The name that it has here."""
    remote_url: Annotated[str, AfterValidator(_wss_url)] | None = None
    """Where its WebSocket gateway is: `wss://host:port`; absent where it only calls here."""
    trusted_identity: InsidePath
    """Its Ed25519 public key in base64, or the file that holds it."""
    description: Description
    """What it is for."""
    allowed_root_tags: Literal["*"] | tuple[str, ...] = ()
    """The root tags of payloads that it may send here; `*` for any."""
    ca: InsidePath | None = None
    """The file of the certificates that vouch for it, PEM; the system's where it is absent."""
    timeout_seconds: float = Field(default=60.0, gt=0)
    """Seconds that an answer of it may take."""


class LlmSpec(_Section):
    """An OpenAI-compatible endpoint, as a peer that agents may name."""

    name: Name = "llm"
    """The name that it has here."""
    base_url: Annotated[str, AfterValidator(_http_url)]
    """The address of its API, such as `http://127.0.0.1:11434/v1`."""
    model: str = Field(min_length=1)
    """The model that it is asked for."""
    key_variable: str | None = None
    """The environment variable that holds its key."""
    key_file: InsidePath | None = None
    """The file that holds its key."""
    description: Description = "A language model."
    """What it is for."""
    timeout_seconds: float = Field(default=120.0, gt=0)
    """Seconds that an answer may take, with all attempts."""
    attempts: int = Field(default=3, ge=1, le=10)
    """How often a request is sent where the endpoint is throttled or broken."""
    stream: bool = True
    """Whether the answer is asked for piece by piece."""
    temperature: float | None = Field(default=None, ge=0)
    """How much chance there is in an answer; the endpoint's default where it is absent."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Tokens of an answer; one that is cut off by it is refused."""
    answer_bytes: int = Field(default=1 << 20, ge=1)
    """Bytes of the longest answer that is taken."""


class RuntimeSpec(_Section):
    """An Agentix runtime, whose functions listeners may name as `ns:package.function`."""

    url: str | None = None
    """Where it is, `http://host:port` or `unix:path`; the one that started the pump by default."""
    token_file: InsidePath | None = None
    """The file that holds its token."""
    token_variable: str | None = None
    """The environment variable that holds its token."""
    allow: tuple[FunctionName, ...] = ()
    """The functions that may be peers at all, such as `mock_agent.run`."""
    timeout_seconds: float = Field(default=60.0, gt=0)
    """Seconds that a call may take."""


class OrganismSpec(_Section):
    """The whole of `organism.yaml`.

    Example:
        ```python
        from agentix.agentserver import OrganismSpec

        values = {"organism": {"name": "library"}, "isolation": "inprocess"}
        spec = OrganismSpec.model_validate(values)
        ```
    """

    organism: OrganismSection
    """Who the organism is."""
    packages: tuple[str, ...] = ()
    """The packages that handlers and payload classes may come from."""
    import_paths: tuple[InsidePath, ...] = (".",)
    """The directories that workers import from, besides the installed packages."""
    preload: tuple[str, ...] = ()
    """Modules without handlers that workers share, imported once."""
    isolation: Literal["thread", "listener", "inprocess"] = "thread"
    """A worker for each listener and thread, for each listener, or (for development) none."""
    thread_scheduling: Literal["breadth-first", "depth-first"] = "breadth-first"
    """Which thread goes first when handlers wait: the one that waits longest, or the deepest."""
    schemas: InsidePath = "schemas"
    """The directory that XSD files are written to."""
    journal: JournalSpec | None = JournalSpec()
    """The write-ahead log; `null` for none."""
    limits: LimitsSpec = LimitsSpec()
    """What the pump bounds."""
    workers: WorkersSpec = WorkersSpec()
    """What the workers that handlers run in may use."""
    meta: MetaSpec = MetaSpec()
    """Who is answered when it asks about capabilities."""
    oob: OobSpec = OobSpec()
    """The out-of-band channel."""
    llm: tuple[LlmSpec, ...] = ()
    """The endpoints of models."""
    runtime: RuntimeSpec = RuntimeSpec()
    """Where functions of namespaces are called."""
    listeners: tuple[ListenerSpec, ...] = ()
    """The listeners, in the order of their registration."""
    gateways: tuple[GatewaySpec, ...] = ()
    """The other organisms."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [*self._names()]
        if twice := sorted(name for name, count in Counter(names).items() if count > 1):
            raise ValueError(f"names are given twice: {', '.join(twice)}")
        known = {*names, *self.groups()}
        for listener in self.listeners:
            self._check_peers(listener, known)
            self._check_packages(listener)
        return self

    def _names(self) -> Iterator[str]:
        yield from (listener.name for listener in self.listeners)
        yield from (gateway.name for gateway in self.gateways)
        yield from (model.name for model in self.llm)

    def groups(self) -> set[str]:
        """Return the names of the broadcast groups."""
        return {part.name.rpartition(".")[0] for part in self.listeners if part.broadcast}

    def _check_peers(self, listener: ListenerSpec, known: set[str]) -> None:
        named = {peer for peer in listener.peers if not peer.startswith("ns:")}
        if unknown := sorted(named - known):
            raise ValueError(
                f"{listener.name}: no such peer: {', '.join(unknown)}"
                f" (there are {', '.join(sorted(known))})"
            )
        functions = {peer.removeprefix("ns:") for peer in listener.peers if peer.startswith("ns:")}
        if closed := sorted(functions - {*self.runtime.allow}):
            raise ValueError(f"{listener.name}: not in runtime.allow: {', '.join(closed)}")

    def _check_packages(self, listener: ListenerSpec) -> None:
        allowed = (*self.packages, OWN_PACKAGE)
        for path in (listener.payload_class, listener.handler, *listener.reply_class):
            if not any(path.startswith(f"{package}.") for package in allowed):
                raise ValueError(
                    f"{listener.name}: {path} is in none of the configured packages"
                    f" ({', '.join(self.packages) or 'none'}); add its package to `packages`"
                )


def load_spec(path: Path) -> OrganismSpec:
    """Read an `organism.yaml`.

    Raises:
        SpecError: It cannot be read, is no YAML, or says what an organism cannot be.
    """
    try:
        document = read_yaml(path)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from error
    try:
        return parse_spec(document)
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error


def parse_spec(document: object) -> OrganismSpec:
    """Read what an `organism.yaml` holds, as plain data.

    Raises:
        SpecError: It says what an organism cannot be.
    """
    try:
        return OrganismSpec.model_validate(document)
    except ValidationError as error:
        raise SpecError(reasons(error, _Section.__subclasses__())) from error
