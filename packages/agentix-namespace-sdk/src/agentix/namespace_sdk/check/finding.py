"""What a check found: a broken rule, and where."""

from dataclasses import dataclass

from agentix.namespace_sdk.check.rules import RULES, Rule

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    """One place at which a rule is broken."""

    file: str
    """The file, as it is shown."""
    line: int | None
    """Its line, from 1, where there is one."""
    code: str
    """The code of the rule."""
    message: str
    """What is wrong, with the value that is."""

    @property
    def rule(self) -> Rule:
        """The rule that is broken."""
        return RULES[self.code]

    @property
    def place(self) -> str:
        """The file, and the line where there is one, as editors understand it."""
        return self.file if self.line is None else f"{self.file}:{self.line}"
