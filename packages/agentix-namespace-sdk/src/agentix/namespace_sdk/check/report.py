"""Findings as text, as JSON, and as annotations of GitHub's."""

import json
from collections.abc import Callable, Mapping, Sequence

from agentix.namespace_sdk.check.finding import Finding

__all__ = ["FORMATS"]


def as_text(target: str, findings: Sequence[Finding]) -> str:
    """Gives two lines a finding, and one in the end."""
    lines = []
    for finding in findings:
        lines += [
            f"{finding.place}: {finding.code} {finding.message}",
            f"    {finding.rule.mend} ({finding.rule.page})",
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
    """Gives one object with the list of findings."""
    listed = [
        {
            "code": finding.code,
            "title": finding.rule.title,
            "message": finding.message,
            "file": finding.file,
            "line": finding.line,
            "mend": finding.rule.mend,
            "page": finding.rule.page,
        }
        for finding in findings
    ]
    return json.dumps({"target": target, "findings": listed}, indent=2)


def as_github(target: str, findings: Sequence[Finding]) -> str:
    """Gives one workflow command a finding, which GitHub shows beside the line."""
    return "\n".join(_workflow_command(finding) for finding in findings)


def _workflow_command(finding: Finding) -> str:
    place = {"file": finding.file, "title": f"{finding.code} {finding.rule.title}"}
    if finding.line is not None:
        place["line"] = str(finding.line)
    properties = ",".join(f"{key}={_property(value)}" for key, value in place.items())
    return f"::error {properties}::{_data(f'{finding.message}; {finding.rule.mend}')}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


FORMATS: Mapping[str, Callable[[str, Sequence[Finding]], str]] = {
    "text": as_text,
    "json": as_json,
    "github": as_github,
}
"""What writes findings, by the name of the format."""
