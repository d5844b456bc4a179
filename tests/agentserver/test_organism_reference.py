"""The reference of organism.yaml says what the models say, key by key."""

import ast
import inspect
import json
import re
import types
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentix.agentserver import spec
from agentix.agentserver.spec import OrganismSpec, parse_spec

PAGE = Path(__file__).parents[2] / "docs" / "agentserver" / "organism.md"
SECTIONS: Mapping[str, type[BaseModel]] = {
    "The whole file": OrganismSpec,
    "organism": spec.OrganismSection,
    "organism.tls": spec.TlsSpec,
    "listeners": spec.ListenerSpec,
    "limits": spec.LimitsSpec,
    "workers": spec.WorkersSpec,
    "journal": spec.JournalSpec,
    "meta": spec.MetaSpec,
    "oob": spec.OobSpec,
    "gateways": spec.GatewaySpec,
    "llm": spec.LlmSpec,
    "runtime": spec.RuntimeSpec,
}
WORDS = {"str": "text", "int": "whole number", "float": "number", "bool": "true or false"}
SOURCE = ast.parse(inspect.getsource(spec))


def docs_of(model: type[BaseModel]) -> dict[str, str]:
    """Return what the docstrings below a model's fields say."""
    (body,) = [node.body for node in SOURCE.body
               if isinstance(node, ast.ClassDef) and node.name == model.__name__]  # fmt: skip
    found = {}
    for field, doc in pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(doc, ast.Expr)
            assert isinstance(doc.value, ast.Constant)
            found[field.target.id] = str(doc.value.value)
    return found


def kind_of(annotation: Any) -> str:
    """Return what a value of a key is, in words."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (Union, types.UnionType):
        return " or ".join(kind_of(each) for each in arguments if each is not type(None))
    if origin is tuple:
        return f"list of {kind_of(arguments[0])}"
    if hasattr(annotation, "__metadata__"):
        return kind_of(arguments[0])
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return WORDS[annotation.__name__]


def default_of(field: FieldInfo) -> str:
    """Return what stands for an absent key."""
    if field.is_required():
        return "needed"
    value = field.default
    if isinstance(value, BaseModel):
        return "its defaults"
    if value is None or value == ():
        return "none"
    return f"`{json.dumps(value)}`".replace('"', "")


def table(model: type[BaseModel]) -> str:
    """Return the table of a section."""
    docs = docs_of(model)
    lines = ["| key | value | absent | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        cells = (f"`{name}`", kind_of(field.annotation), default_of(field), docs[name])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def section(heading: str) -> str:
    """Return the text below a heading of the page."""
    title = heading if heading == "The whole file" else f"`{heading}`"
    _, _, after = PAGE.read_text(encoding="utf-8").partition(f"\n## {title}\n")
    assert after, f"there is no heading {title}"
    return after.partition("\n## ")[0]


@pytest.mark.parametrize("heading", SECTIONS)
def test_a_section_lists_every_key(heading: str) -> None:
    assert table(SECTIONS[heading]) in section(heading)


def test_every_model_has_its_section() -> None:
    found = [value for value in vars(spec).values() if isinstance(value, type)]
    models = {value for value in found if issubclass(value, BaseModel)} - {BaseModel}
    models = {value for value in models if not value.__name__.startswith("_")}
    assert models == set(SECTIONS.values())


def test_every_example_of_the_page_is_read() -> None:
    examples = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) > 3
    whole: dict[str, Any] = {}
    for example in examples:
        whole |= yaml.safe_load(example)
    assert parse_spec(whole).organism.name == "library"


def main() -> None:
    """Print the tables, for the page."""
    for heading, model in SECTIONS.items():
        print(f"## `{heading}`\n\n{table(model)}\n")


if __name__ == "__main__":
    main()
