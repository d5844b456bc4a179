"""Findings as text, as JSON and as annotations of GitHub, and a rule explained."""

import json
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentix.namespace_sdk.check.rules import Finding, Rule

__all__ = ["FORMATS", "explain"]

WIDTH = 88
"""Columns of an explanation."""


def as_text(target: str, findings: Sequence[Finding]) -> str:
    """Return two lines for each finding, and the number of them in the end."""
    lines = []
    for finding in findings:
        lines += [
            f"{finding.place}: {finding.code} {finding.message}",
            f"    {finding.rule.fix} ({finding.rule.page})",
        ]
    match len(findings):
        case 0:
            ending = "nothing found"
        case 1:
            ending = "1 finding"
        case count:
            ending = f"{count} findings"
    return "\n".join([*lines, f"{target}: {ending}"])


def as_json(target: str, findings: Sequence[Finding]) -> str:
    """Return one object with the list of findings."""
    listed = [
        {
            "code": finding.code,
            "title": finding.rule.title,
            "message": finding.message,
            "file": finding.file,
            "line": finding.line,
            "fix": finding.rule.fix,
            "page": finding.rule.page,
        }
        for finding in findings
    ]
    return json.dumps({"target": target, "findings": listed}, indent=2)


def as_github(target: str, findings: Sequence[Finding]) -> str:
    """Return one workflow command for each finding, which GitHub shows beside the line."""
    return "\n".join(_workflow_command(finding) for finding in findings)


def _workflow_command(finding: Finding) -> str:
    place = {"file": finding.file, "title": f"{finding.code} {finding.rule.title}"}
    if finding.line is not None:
        place["line"] = str(finding.line)
    properties = ",".join(f"{key}={_escape_property(value)}" for key, value in place.items())
    return f"::error {properties}::{_escape(f'{finding.message}; {finding.rule.fix}')}"


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[str, Sequence[Finding]], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
}
"""What writes findings, by the name of the format."""


def explain(rule: Rule[Any]) -> str:
    """Return what the page of a rule says, in brief."""
    why = textwrap.fill(
        " ".join(rule.why.split()), WIDTH, break_long_words=False, break_on_hyphens=False
    )
    return f"{rule.code}: {rule.title}\n\n{why}\n\nFix: {rule.fix}\nPage: {rule.page}"
