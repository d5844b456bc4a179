"""The registry: listeners by their names and root tags, and whom each may call."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentix.agentserver.errors import RegistrationError
from agentix.agentserver.names import listener_namespace
from agentix.agentserver.payload import PayloadCodec
from agentix.agentserver.pipeline import Pipeline
from agentix.agentserver.trusted import TrustedListener
from agentix.agentserver.worker.handlers import HandlerSource

__all__ = ["Listener", "Registry", "by_prefix"]


@dataclass(slots=True, eq=False)
class Listener:
    """A listener that can be called."""

    name: str
    """Its name."""
    description: str
    """What it is for."""
    codecs: tuple[PayloadCodec | None, ...]
    """The codec of its payload, then those of its reply classes; `None` takes any element."""
    pipeline: Pipeline
    """The steps of its own that a message for it goes through."""
    handler_seconds: float
    """Seconds that it may take for one message."""
    iterations: int
    """Messages that it handles in one thread for one message from its caller."""
    tokens: int | None = None
    """Tokens that it may use in one thread."""
    source: HandlerSource | None = None
    """Where its code is; `None` for a trusted one."""
    trusted: TrustedListener | None = None
    """What runs in the pump for it."""
    agent: bool = False
    """Whether it is an agent."""
    broadcast: bool = False
    """Whether it answers the root tag of its group too."""
    peers: tuple[str, ...] = ()
    """The names that it may call."""
    routes: "Mapping[str, tuple[Listener, ...]]" = field(default_factory=dict)
    """The listeners behind each root tag that it may emit; its own among them."""
    prefixes: "tuple[tuple[str, Listener], ...]" = ()
    """The peers that take every root tag with a prefix."""
    group_codec: PayloadCodec | None = None
    """The codec of its payload under the root tag of its group."""
    replies: Mapping[str, int] = field(default_factory=dict)
    """Which class takes a reply, by the tag; the empty one takes all others."""

    @property
    def root(self) -> str:
        """The root tag of its payload; for one that takes several, what they begin with."""
        codec = self.codecs[0]
        return f"{self.name.lower()}." if codec is None else codec.root

    @property
    def group(self) -> str | None:
        """The group that it answers for: its name without the last segment."""
        return self.name.rpartition(".")[0] if self.broadcast else None

    @property
    def group_root(self) -> str | None:
        """The root tag of its group."""
        return None if self.group_codec is None else self.group_codec.root

    def tags(self) -> Iterator[str]:
        """Gives the tags of its payload: unqualified, and in its own XML namespace."""
        yield self.root
        yield f"{{{listener_namespace(self.name)}}}{self.root}"

    def codec(self, payload_class: int, tag: str) -> PayloadCodec | None:
        """Gives the codec of a class, for an element of a tag; `None` where any element will do."""
        if self.group_codec is not None and tag == self.group_codec.root:
            return self.group_codec
        return self.codecs[payload_class]

    def reply_class(self, tag: str) -> int | None:
        """Gives which class takes a reply of a tag; `None` where it takes none."""
        index = self.replies.get(tag)
        return self.replies.get("") if index is None else index


class Registry:
    """All listeners. It changes as a whole: a listener is in every table, or in none."""

    def __init__(self) -> None:
        self._listeners: dict[str, Listener] = {}
        self._roots: dict[str, tuple[Listener, ...]] = {}
        self._prefixes: tuple[tuple[str, Listener], ...] = ()

    def __len__(self) -> int:
        return len(self._listeners)

    def __iter__(self) -> Iterator[Listener]:
        return iter(tuple(self._listeners.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._listeners

    def get(self, name: str) -> Listener | None:
        """Gives the listener of a name, where there is one."""
        return self._listeners.get(name)

    def find(self, tag: str) -> tuple[Listener, ...]:
        """Gives the listeners behind a tag, whoever asks; none where it is nobody's."""
        return self._roots.get(tag) or by_prefix(self._prefixes, tag)

    def named(self, name: str) -> tuple[Listener, ...]:
        """Gives the listener of a name, or the members of the group of that name."""
        listener = self._listeners.get(_listener_name(name))
        if listener is not None:
            return (listener,)
        return tuple(each for each in self._listeners.values() if each.group == name)

    def add(self, listeners: Sequence[Listener]) -> None:
        """Adds listeners, all or none.

        Raises:
            RegistrationError: A name or a root tag is taken; nothing has changed.
        """
        self._publish([*self._listeners.values(), *listeners])

    def remove(self, name: str) -> Listener:
        """Removes a listener.

        Raises:
            KeyError: There is none of that name.
        """
        listener = self._listeners[name]
        self._publish([each for each in self._listeners.values() if each is not listener])
        return listener

    def _publish(self, listeners: Sequence[Listener]) -> None:
        names = _by_name(listeners)
        roots = _by_root(listeners)
        self._listeners, self._roots = names, roots
        self._prefixes = tuple(_prefixes(listeners))
        for listener in listeners:
            self._connect(listener)

    def _connect(self, listener: Listener) -> None:
        """Compiles the routes of a listener from the names of its peers."""
        routes: dict[str, tuple[Listener, ...]] = {}
        peers: list[Listener] = []
        for peer in listener.peers:
            found = self.named(peer)
            if found and _listener_name(peer) not in self._listeners:
                routes[str(found[0].group_root)] = found
            peers += found if len(found) == 1 and found[0].name == _listener_name(peer) else []
        for each in (listener, *peers):
            routes |= dict.fromkeys(each.tags(), (each,)) if each.codecs[0] is not None else {}
        listener.routes = routes
        listener.prefixes = tuple(_prefixes(peers))


def _listener_name(peer: str) -> str:
    """Gives the name of a peer as a listener: `ns.package.function` for `ns:package.function`."""
    return peer.replace("ns:", "ns.", 1) if peer.startswith("ns:") else peer


def _by_name(listeners: Iterable[Listener]) -> dict[str, Listener]:
    names: dict[str, Listener] = {}
    for listener in listeners:
        if listener.name in names:
            raise RegistrationError(
                f"{listener.name!r} is registered already, with the root tag "
                f"{names[listener.name].root!r}: choose another name"
            )
        names[listener.name] = listener
    return names


def _by_root(listeners: Iterable[Listener]) -> dict[str, tuple[Listener, ...]]:
    roots: dict[str, tuple[Listener, ...]] = {}
    groups: dict[str, tuple[Listener, ...]] = {}
    for listener in listeners:
        if listener.codecs[0] is None:
            continue
        for tag in listener.tags():
            if tag in roots:
                raise RegistrationError(
                    f"{listener.name}: the root tag {listener.root!r} is taken by "
                    f"{roots[tag][0].name!r}: choose another name or payload class"
                )
            roots[tag] = (listener,)
        if listener.group_root is not None:
            groups[listener.group_root] = _grown(groups.get(listener.group_root, ()), listener)
    _check_groups(groups, roots)
    return roots | groups


def _grown(members: tuple[Listener, ...], listener: Listener) -> tuple[Listener, ...]:
    """Adds a member to its group; all members take the same class."""
    if members and _payload_class(members[0]) != _payload_class(listener):
        raise RegistrationError(
            f"{listener.name}: the group {listener.group!r} takes {_payload_class(members[0])}, "
            f"and not {_payload_class(listener)}: give its members one class"
        )
    return (*members, listener)


def _payload_class(listener: Listener) -> str:
    return "" if listener.source is None else listener.source.payload_classes[0]


def _check_groups(
    groups: Mapping[str, Sequence[Listener]], roots: Mapping[str, Sequence[Listener]]
) -> None:
    """Refuses a group whose root tag is a listener's, or that has members of two classes."""
    seen: dict[Any, str] = {}
    for root, members in groups.items():
        if root in roots:
            raise RegistrationError(
                f"{members[0].name}: the root tag {root!r} of its group is taken by "
                f"{roots[root][0].name!r}: choose another name"
            )
        group = members[0].group
        if seen.setdefault(group, root) != root:
            raise RegistrationError(
                f"{members[0].name}: the group {group!r} takes {seen[group]!r}, and not {root!r}: "
                "give its members one class"
            )


def _prefixes(listeners: Iterable[Listener]) -> Iterator[tuple[str, Listener]]:
    for listener in listeners:
        if listener.codecs[0] is None:
            yield f"{listener.name.lower()}.", listener


def by_prefix(prefixes: Sequence[tuple[str, Listener]], tag: str) -> tuple[Listener, ...]:
    """Gives the listener with the longest prefix of a tag."""
    found = [(prefix, listener) for prefix, listener in prefixes if tag.startswith(prefix)]
    return (max(found, key=lambda each: len(each[0]))[1],) if found else ()
