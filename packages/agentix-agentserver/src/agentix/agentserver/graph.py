"""Graphs: an organism as a drawing, in mermaid, graphviz or JSON."""

import json
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from agentix.agentserver.registry import Listener, Registry

__all__ = ["Edge", "Graph", "Node", "draw", "graph_of"]

Shape = Literal["listener", "agent", "group", "gateway", "trusted"]


@dataclass(frozen=True, slots=True)
class Node:
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
    nodes: tuple[Node, ...]
    """Everything that can be called."""
    edges: tuple[Edge, ...]
    """Who may call whom."""
    members: tuple[Edge, ...] = ()
    """The members of each group, the group being the caller."""

    def team(self, name: str) -> "Graph":
        """Gives the part that a listener reaches, or that a group or a prefix of names holds."""
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


def graph_of(name: str, registry: Registry, gateways: Container[str]) -> Graph:
    """Gives the graph of an organism.

    Args:
        name: The organism's name.
        registry: Its listeners.
        gateways: The names of those that are other organisms.
    """
    groups = dict.fromkeys(listener.group for listener in registry if listener.group is not None)
    return Graph(
        name,
        (
            *(Node(each.name, _shape(each, gateways), each.description) for each in registry),
            *(Node(group, "group", "A broadcast group.") for group in groups),
        ),
        tuple(_edges(registry)),
        tuple(Edge(each.group, each.name) for each in registry if each.group is not None),
    )


def _shape(listener: Listener, gateways: Container[str]) -> Shape:
    if listener.name in gateways:
        return "gateway"
    if listener.trusted is not None:
        return "trusted"
    return "agent" if listener.agent else "listener"


def _edges(registry: Registry) -> Iterator[Edge]:
    for listener in registry:
        for peer in listener.peers:
            if registry.named(peer):
                yield Edge(listener.name, peer.replace("ns:", "ns.", 1))


def draw(graph: Graph, format: str) -> str:  # noqa: A002 - the protocol's word
    """Draws a graph.

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
