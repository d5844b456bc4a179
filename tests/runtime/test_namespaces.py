"""`GET /namespaces?schemas=1`: what can be called, described by the codecs of calls."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.serving import Server, get, manifest_of, mount, mount_probe, serving

REGISTER = """
from agentix.dispatch import Dispatcher
from . import {stub}

def register():
    dispatcher = Dispatcher()
    dispatcher.bind({stub}, lambda {parameters}: None)
    return dispatcher
"""

UNSPEAKABLE = """
from typing import Any

class Strange:
    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        return handler(int)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: Any, handler: Any) -> Any:
        raise LookupError("it has no words")

def strange() -> Strange:
    raise NotImplementedError
"""

UNDESCRIBED = """
from typing import Annotated, Any
from pydantic import PlainValidator

def undescribed(value: Annotated[Any, PlainValidator(lambda value: value)]) -> int:
    raise NotImplementedError
"""

LOADED = """
import sys
import agentix.runtime.__main__
print(*sys.modules)
"""


def mount_all(mounts: Path) -> None:
    mount_probe(mounts)
    mount(mounts, "c2", manifest_of("absent"), __init__="raise ValueError('no luck')")
    for name, source, parameters in [
        ("strange", UNSPEAKABLE, ""),
        ("undescribed", UNDESCRIBED, "value"),
    ]:
        register = REGISTER.format(stub=name, parameters=parameters)
        mount(mounts, name, manifest_of(name), __init__=source, _register=register)


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with serving(tmp_path_factory.mktemp("schemas"), prepare=mount_all) as server:
        return entries(server, "/namespaces?schemas=1")


def entries(server: Server, path: str) -> dict[str, Any]:
    """Gives the entries by the names of their namespaces."""
    answer = server.exchange(get(path)).partition(b"\r\n\r\n")[2]
    return {entry["manifest"]["name"]: entry for entry in json.loads(answer)["namespaces"]}


def function(described: dict[str, Any], name: str) -> Any:
    functions = described["probe"]["schemas"]["functions"]
    return next(each for each in functions if each["name"] == name)


def test_nothing_is_imported_until_schemas_are_asked_for(own_server: Server) -> None:
    plain = entries(own_server, "/namespaces")["probe"]
    assert entries(own_server, "/namespaces?schemas=0")["probe"] == plain
    assert plain["loaded"] is False
    assert plain.keys() == {"manifest", "loaded", "error"}
    entry = entries(own_server, "/namespaces?schemas=1")["probe"]
    assert (entry["loaded"], entry["error"]) == (True, None)
    assert entries(own_server, "/namespaces")["probe"] == plain | {"loaded": True}


def test_runtime_starts_without_describing_anything() -> None:
    command = [sys.executable, "-c", LOADED]
    modules = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert "agentix.runtime.namespaces" in modules
    assert not {"agentix.description", "agentix.schema"} & set(modules)


def test_parameters_are_told_by_kind_with_their_defaults(described: dict[str, Any]) -> None:
    told = function(described, "parameters")
    assert told == {
        "name": "parameters",
        "description": None,
        "streams": False,
        "parameters": [
            parameter("a", "positional_only", {"type": "integer"}),
            parameter("b", "positional_or_keyword", {"type": "integer"}),
            parameter(
                "rest", "var_positional", {"items": {"type": "integer"}, "type": "array"}, False
            ),
            parameter("c", "keyword_only", {"type": "integer", "default": 3}, False),
            parameter(
                "more",
                "var_keyword",
                {"additionalProperties": {"type": "integer"}, "type": "object"},
                False,
            ),
        ],
        "result": {"items": {}, "type": "array"},
    }
    defaults = function(described, "defaults")["parameters"]
    assert [each["schema"].get("default") for each in defaults] == [None, [1, 2], "c"]


def parameter(name: str, kind: str, schema: Any, required: bool = True) -> Any:
    return {"name": name, "kind": kind, "required": required, "schema": schema}


def test_stream_is_told_by_its_items(described: dict[str, Any]) -> None:
    assert function(described, "count")["streams"] is True
    assert function(described, "count")["result"] == {"type": "integer"}
    assert function(described, "echo")["streams"] is False


def test_types_are_those_of_the_wire(described: dict[str, Any]) -> None:
    """Bytes are base64, an enumeration names its members, and references resolve."""
    definitions = described["probe"]["schemas"]["$defs"]
    told = function(described, "everything")
    reference = told["parameters"][0]["schema"]["$ref"]
    properties = definitions[reference.removeprefix("#/$defs/")]["properties"]
    assert properties["blob"] == {"format": "base64url", "type": "string"}
    assert properties["when"] == {"format": "date-time", "type": "string"}
    assert properties["colour"] == {"$ref": "#/$defs/Colour"}
    assert properties["inner"]["default"] == {}
    assert definitions["Colour"]["x-enum-varnames"] == ["RED", "BLUE"]
    result = definitions[told["result"]["$ref"].removeprefix("#/$defs/")]
    assert result["properties"]["amount"]["type"] == "string"


def test_namespace_that_fails_is_told_and_hides_no_other(described: dict[str, Any]) -> None:
    absent, strange = described["absent"], described["strange"]
    assert (absent["loaded"], absent["schemas"]) == (False, None)
    assert absent["error"] == "ValueError: no luck"
    assert (strange["loaded"], strange["schemas"]) == (True, None)
    assert strange["error"] == "LookupError: it has no words"
    assert len(described["probe"]["schemas"]["functions"]) > 20


def test_type_without_a_description_is_any_value(described: dict[str, Any]) -> None:
    (undescribed,) = described["undescribed"]["schemas"]["functions"]
    assert undescribed["parameters"] == [parameter("value", "positional_or_keyword", {})]


def test_other_values_of_the_query_are_refused(own_server: Server) -> None:
    answer = own_server.exchange(get("/namespaces?schemas=yes"))
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.endswith(b'{"error":"schemas=\'yes\' is neither 0 nor 1"}')
