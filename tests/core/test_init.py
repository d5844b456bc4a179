"""The root package: what it exports, and what installing a client brings."""

import re
from importlib.metadata import requires

import pytest

import agentix
from agentix.client import RuntimeClient
from agentix.docker import DockerDeployment
from agentix.local import LocalDeployment


def test_names_of_sibling_distributions_are_at_the_top() -> None:
    assert agentix.RuntimeClient is RuntimeClient
    assert agentix.DockerDeployment is DockerDeployment
    assert agentix.LocalDeployment is LocalDeployment


@pytest.mark.parametrize("name", agentix.__all__)
def test_exported_name_exists(name: str) -> None:
    assert getattr(agentix, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'agentix' has no attribute 'Nothing'"):
        getattr(agentix, "Nothing")  # noqa: B009 - a type checker would refuse the plain form


def installed_with(*names: str) -> set[str]:
    """Gives what installing distributions brings, extras apart."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = re.sub(r"[-_.]+", "-", pending.pop()).lower()
        if name in found:
            continue
        found.add(name)
        for requirement in requires(name) or []:
            text, _, marker = requirement.partition(";")
            match = re.match(r"[A-Za-z0-9._-]+", text)
            if match and "extra" not in marker and "python_version <" not in marker:
                pending.append(match[0])
    return found


def test_client_and_docker_bring_no_server() -> None:
    brought = installed_with("agentix-client", "agentix-docker")
    assert {"agentix-core", "aiohttp", "aiodocker", "pydantic"} <= brought
    assert brought & {"starlette", "hypercorn", "agentix-runtime", "uvicorn", "fastapi"} == set()
