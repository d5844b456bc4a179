"""The catalog: what callers, models and people are told of listeners, and the drawings of them."""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.names import META_NAMESPACE, Principal
from agentix.agentserver.payload import PayloadCodec
from agentix.agentserver.registry import Listener, ListenerRegistry
from agentix.agentserver.spec import MetaSpec

__all__ = [
    "Capability",
    "Edge",
    "Graph",
    "GraphNode",
    "Meta",
    "Subject",
    "allowed_listeners",
    "capability_of",
    "draw",
    "graph_of",
    "group_capability",
    "may_ask",
    "peer_capability",
]


@dataclass(frozen=True, slots=True)
class Capability:
    """A listener, as its callers know it.

    Example:
        ```python
        from agentix.agentserver import Organism


        def prompts(organism: Organism, agent: str) -> str:
            return "".join(capability.prompt for capability in organism.peers(agent))
        ```
    """

    name: str
    """Its name."""
    description: str
    """What it is for."""
    root_tag: str
    """The root tag of its payload."""
    xsd: bytes
    """The schema of its payload; empty where it takes several."""
    example: str
    """An example of its payload."""
    prompt: str
    """What a model is told about it."""


def capability_of(listener: Listener) -> Capability:
    """Return a listener as its callers know it."""
    codec = listener.codecs[0]
    if codec is None:
        return Capability(
            listener.name, listener.description, listener.root, b"", "", _open_prompt(listener)
        )
    return Capability(
        name=listener.name,
        description=listener.description,
        root_tag=listener.root,
        xsd=codec.xsd,
        example=codec.example(),
        prompt=codec.prompt(listener.name, listener.description),
    )


def group_capability(members: Sequence[Listener]) -> Capability:
    """Return a broadcast group as its callers know it, by the one root tag of all members."""
    first = members[0]
    assert first.group is not None
    assert first.group_root is not None
    assert first.codecs[0] is not None
    codec = PayloadCodec(first.group_root, first.codecs[0].record)
    description = " ".join(member.description for member in members)
    return Capability(
        name=first.group,
        description=description,
        root_tag=codec.root,
        xsd=codec.xsd,
        example=codec.example(),
        prompt=codec.prompt(first.group, f"{description} (Answers come from {len(members)}.)"),
    )


def _open_prompt(listener: Listener) -> str:
    """Tell a model of a listener that takes several payloads: another organism's."""
    return (
        f"Tool: {listener.name}\nDescription: {listener.description}\n"
        f"Input: an element of the other side, with {listener.root!r} before its name\n"
    )


def peer_capability(name: str, found: Sequence[Listener]) -> Capability:
    """Return the capability behind a peer: a listener, or the members of a group."""
    if found[0].group == name:
        return group_capability(found)
    return capability_of(found[0])


NAMESPACE = f"{{{META_NAMESPACE}}}"

Subject = Literal["schema", "example", "prompt"]
"""What may be asked about a listener."""


def allowed_listeners(registry: ListenerRegistry, principal: Principal) -> list[Listener]:
    """Return the listeners that a principal may call."""
    return [listener for listener in registry if principal.may_send(listener.root)]


def may_ask(spec: MetaSpec, principal: Principal, subject: Subject) -> bool:
    """Return whether a principal may ask for the schema, example or prompt of a listener."""
    match subject:
        case "schema":
            allowed = spec.allow_schema_requests
        case "example":
            allowed = spec.allow_example_requests
        case "prompt":
            allowed = spec.allow_prompt_requests
    return _answers(spec, principal) and (
        allowed == "authenticated" or (allowed == "admin" and principal.admin)
    )


def _answers(spec: MetaSpec, principal: Principal) -> bool:
    return spec.enabled and (spec.allow_remote or not principal.remote)


class Meta:
    """Answers queries, as far as the organism's settings allow.

    Args:
        spec: The settings.
        registry: The listeners.
    """

    def __init__(self, spec: MetaSpec, registry: ListenerRegistry) -> None:
        self._spec = spec
        self._registry = registry

    def answer(self, principal: Principal, query: Element) -> Element | None:
        """Return the answer to a query, or nothing where there is none for this principal."""
        if not _answers(self._spec, principal):
            return None
        match str(query.tag).removeprefix(NAMESPACE):
            case "list-capabilities":
                return self._list(principal) if self._spec.allow_list_capabilities else None
            case "request-schema":
                return self._about(principal, query, "schema")
            case "request-example":
                return self._about(principal, query, "example")
            case "request-prompt":
                return self._about(principal, query, "prompt")
        return None

    def _list(self, principal: Principal) -> Element:
        answer = _element("capabilities")
        for listener in allowed_listeners(self._registry, principal):
            _element("capability", listener.name, answer)
        return answer

    def _about(self, principal: Principal, query: Element, subject: Subject) -> Element | None:
        if not may_ask(self._spec, principal, subject):
            return None
        listener = self._registry.get(query.findtext(f"{NAMESPACE}capability") or "")
        if listener is None or not principal.may_send(listener.root):
            return None
        text = _text(listener, subject)
        if text is None:
            return None
        answer = _element(subject)
        _element("capability", listener.name, answer)
        _element("content", text, answer)
        return answer


def _text(listener: Listener, subject: Subject) -> str | None:
    codec = listener.codecs[0]
    if codec is None:
        return None
    match subject:
        case "schema":
            return codec.xsd.decode()
        case "example":
            return codec.example()
        case _:
            return codec.prompt(listener.name, listener.description)


def _element(name: str, text: str | None = None, parent: Element | None = None) -> Element:
    tag = f"{NAMESPACE}{name}"
    if parent is None:
        return etree.Element(tag, nsmap={None: META_NAMESPACE})
    element = etree.SubElement(parent, tag)
    element.text = text
    return element


Shape = Literal["listener", "agent", "group", "gateway", "trusted"]


@dataclass(frozen=True, slots=True)
class GraphNode:
    """Something that can be called."""

    name: str
    """Its name."""
    shape: Shape
    """What it is."""
    description: str
    """What it is for."""


@dataclass(frozen=True, slots=True)
class Edge:
    """Who may call whom."""

    caller: str
    """The one with the peer."""
    callee: str
    """The peer; a group for all its members."""


@dataclass(frozen=True, slots=True)
class Graph:
    """The nodes and edges of an organism."""

    name: str
    """The organism's name."""
    nodes: tuple[GraphNode, ...]
    """Everything that can be called."""
    edges: tuple[Edge, ...]
    """Who may call whom."""
    members: tuple[Edge, ...] = ()
    """The members of each group, the group being the caller."""

    def team(self, name: str) -> "Graph":
        """Return the part that a listener reaches, or that a group or a prefix of names holds."""
        chosen = {node.name for node in self.nodes if f"{node.name}.".startswith(f"{name}.")}
        links = [*self.edges, *self.members]
        while True:
            reached = {edge.callee for edge in links if edge.caller in chosen} - chosen
            if not reached:
                break
            chosen |= reached
        return Graph(
            self.name,
            tuple(node for node in self.nodes if node.name in chosen),
            _within(self.edges, chosen),
            _within(self.members, chosen),
        )


def _within(edges: Iterable[Edge], chosen: set[str]) -> tuple[Edge, ...]:
    return tuple(edge for edge in edges if {edge.caller, edge.callee} <= chosen)


def graph_of(name: str, registry: ListenerRegistry, gateways: Container[str]) -> Graph:
    """Return the graph of an organism.

    Args:
        name: The organism's name.
        registry: Its listeners.
        gateways: The names of those that are other organisms.
    """
    groups = dict.fromkeys(listener.group for listener in registry if listener.group is not None)
    return Graph(
        name,
        (
            *(GraphNode(each.name, _shape(each, gateways), each.description) for each in registry),
            *(GraphNode(group, "group", "A broadcast group.") for group in groups),
        ),
        tuple(_edges(registry)),
        tuple(Edge(each.group, each.name) for each in registry if each.group is not None),
    )


def _shape(listener: Listener, gateways: Container[str]) -> Shape:
    if listener.name in gateways:
        return "gateway"
    if listener.in_process is not None:
        return "trusted"
    return "agent" if listener.agent else "listener"


def _edges(registry: ListenerRegistry) -> Iterator[Edge]:
    for listener in registry:
        for peer in listener.peers:
            if registry.named(peer):
                yield Edge(listener.name, peer.replace("ns:", "ns.", 1))


def draw(graph: Graph, format: str) -> str:  # noqa: A002 - the protocol's word
    """Draw a graph.

    Raises:
        ValueError: The format is none of `mermaid`, `graphviz` and `json`.
    """
    if format not in FORMATS:
        raise ValueError(f"{format!r} is no format: choose from {', '.join(FORMATS)}")
    return FORMATS[format](graph)


MERMAID: Mapping[Shape, tuple[str, str]] = {
    "listener": ("[", "]"),
    "agent": ("([", "])"),
    "group": ("{{", "}}"),
    "gateway": ("[[", "]]"),
    "trusted": ("[/", "/]"),
}
GRAPHVIZ: Mapping[Shape, str] = {
    "listener": "box",
    "agent": "oval",
    "group": "hexagon",
    "gateway": "box3d",
    "trusted": "parallelogram",
}


def _mermaid(graph: Graph) -> str:
    return "\n".join(_mermaid_lines(graph)) + "\n"


def _mermaid_lines(graph: Graph) -> Iterator[str]:
    ids = {node.name: f"n{number}" for number, node in enumerate(graph.nodes)}
    yield "graph LR"
    for node in graph.nodes:
        start, end = MERMAID[node.shape]
        yield f'    {ids[node.name]}{start}"{node.name}"{end}'
    for edge in graph.edges:
        yield f"    {ids[edge.caller]} --> {ids[edge.callee]}"
    for edge in graph.members:
        yield f"    {ids[edge.caller]} -.- {ids[edge.callee]}"


def _graphviz(graph: Graph) -> str:
    return "\n".join(_graphviz_lines(graph)) + "\n"


def _graphviz_lines(graph: Graph) -> Iterator[str]:
    yield f"digraph {json.dumps(graph.name)} {{"
    yield "    rankdir=LR;"
    for node in graph.nodes:
        yield f"    {json.dumps(node.name)} [shape={GRAPHVIZ[node.shape]}];"
    for edge in graph.edges:
        yield f"    {json.dumps(edge.caller)} -> {json.dumps(edge.callee)};"
    for edge in graph.members:
        yield f"    {json.dumps(edge.caller)} -> {json.dumps(edge.callee)} [style=dashed];"
    yield "}"


def _json(graph: Graph) -> str:
    document = {
        "organism": graph.name,
        "nodes": [
            {"name": node.name, "kind": node.shape, "description": node.description}
            for node in graph.nodes
        ],
        "edges": [[edge.caller, edge.callee] for edge in graph.edges],
        "members": [[edge.caller, edge.callee] for edge in graph.members],
    }
    return json.dumps(document, ensure_ascii=False)


FORMATS: Mapping[str, Callable[[Graph], str]] = {
    "mermaid": _mermaid,
    "graphviz": _graphviz,
    "json": _json,
}
