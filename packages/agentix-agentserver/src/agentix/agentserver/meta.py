"""Meta queries: what callers may ask the organism about its listeners."""

from typing import Literal

from lxml import etree
from lxml.etree import _Element as Element

from agentix.agentserver.core import META_NAMESPACE
from agentix.agentserver.principal import Principal
from agentix.agentserver.registry import Listener, Registry
from agentix.agentserver.spec import MetaSpec

__all__ = ["Meta", "Subject", "allowed_listeners", "may_ask"]

NAMESPACE = f"{{{META_NAMESPACE}}}"

Subject = Literal["schema", "example", "prompt"]
"""What may be asked about a listener."""


def allowed_listeners(registry: Registry, principal: Principal) -> list[Listener]:
    """Gives the listeners that a principal may call."""
    return [listener for listener in registry if principal.may_send(listener.root)]


def may_ask(spec: MetaSpec, principal: Principal, subject: Subject) -> bool:
    """Tells whether a principal may ask for the schema, example or prompt of a listener."""
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

    def __init__(self, spec: MetaSpec, registry: Registry) -> None:
        self._spec = spec
        self._registry = registry

    def answer(self, principal: Principal, query: Element) -> Element | None:
        """Gives the answer to a query, or nothing where there is none for this principal."""
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
