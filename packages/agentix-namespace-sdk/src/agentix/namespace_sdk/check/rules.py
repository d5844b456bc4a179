"""Rules of the protocol, and findings of where they are broken.

A rule is a function with its code, its title and what to do:

    @rule("AGX204", "no `py.typed`", fix="add an empty `py.typed`")
    def no_marker(package: NamespacePackage) -> Iterator[Breach]: ...

Its docstring says why there is the rule; its body yields the places where it is broken.

AGX1xx is about the manifest, AGX2xx about the layout of the package, AGX3xx about stubs and their
annotations, AGX4xx about what happens when the package is imported and registered, and AGX5xx
about images and bundles. A code is never given to another rule.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec

from agentix.errors import UsageError

__all__ = ["Breach", "Finding", "Rule", "all_rules", "find_rule", "rule"]

P = ParamSpec("P")


@dataclass(frozen=True)
class Breach:
    """What a rule's function yields: one place where the rule is broken."""

    file: str
    """The file, as the user knows it."""
    message: str
    """What is wrong, with the value that is."""
    line: int | None = None
    """Its line, from 1, where there is one."""


@dataclass(frozen=True)
class Finding:
    """A broken rule, and where.

    ```python
    from agentix.namespace_sdk.check import check

    for finding in check("namespaces/mock-agent"):
        print(finding.place, finding.code, finding.message, finding.rule.fix)
    ```
    """

    file: str
    """The file, as the user knows it."""
    line: int | None
    """Its line, from 1, where there is one."""
    code: str
    """The code of the rule."""
    message: str
    """What is wrong, with the value that is."""

    @property
    def rule(self) -> "Rule[...]":
        """The rule that is broken."""
        return find_rule(self.code)

    @property
    def place(self) -> str:
        """The file, and the line where there is one, in the form that editors understand."""
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class Rule(Generic[P]):
    """One thing that the protocol asks for; calling it yields the findings of its breaches.

    ```python
    from agentix.namespace_sdk.check.rules import find_rule

    assert find_rule("AGX204").title == "no `py.typed`"
    ```
    """

    code: str
    """Its stable code, such as `AGX101`."""
    title: str
    """What is wrong where it is broken."""
    fix: str
    """What to do about it."""
    why: str
    """The reason for it, in a few sentences."""
    breaches: Callable[P, Iterable[Breach]] = field(repr=False)
    """Its function."""

    @property
    def page(self) -> str:
        """The page that explains it, below the documentation's root."""
        return f"sdk/checks/{self.code}.md"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Iterator[Finding]:
        """Yield a finding for each breach that the rule's function yields."""
        for breach in self.breaches(*args, **kwargs):
            yield self.finding(breach.file, breach.message, breach.line)

    def finding(self, file: str, message: str, line: int | None = None) -> Finding:
        """Return a finding of this rule at a place that something else came upon."""
        return Finding(file, line, self.code, message)


_rules: dict[str, Rule[...]] = {}


def rule(code: str, title: str, *, fix: str) -> Callable[[Callable[P, Iterable[Breach]]], Rule[P]]:
    """Make a function the rule whose breaches it yields.

    Args:
        code: The rule's code, which no other rule ever had.
        title: What is wrong where it is broken.
        fix: What to do about it.

    Returns:
        A decorator. The docstring of the function says why there is this rule.
    """

    def register(breaches: Callable[P, Iterable[Breach]]) -> Rule[P]:
        assert code not in _rules, code
        made = Rule(code, title, fix, inspect.getdoc(breaches) or "", breaches)
        _rules[code] = made
        return made

    return register


def all_rules() -> Mapping[str, Rule[Any]]:
    """Return all rules, by code and in its order.

    ```python
    from agentix.namespace_sdk.check.rules import all_rules

    for rule in all_rules().values():
        print(rule.code, rule.title)
    ```
    """
    # The module of closures imports all other modules that have rules.
    import agentix.namespace_sdk.check.closure  # noqa: F401

    return dict(sorted(_rules.items()))


def find_rule(code: str) -> Rule[Any]:
    """Return the rule of a code.

    Raises:
        UsageError: There is no such rule.
    """
    rules = all_rules()
    if code not in rules:
        raise UsageError(f"there is no rule {code!r}: the codes are {', '.join(rules)}")
    return rules[code]
