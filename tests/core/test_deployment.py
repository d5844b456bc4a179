"""The contract of deployments: configurations, sessions, the ready line."""

import types
from collections.abc import AsyncIterator, Sequence
from typing import Any, Self

import pytest
from pydantic import ValidationError

from agentix import Deployment, Sandbox, SandboxConfig, SandboxInfo
from agentix.deployment import DEFAULT_RUNTIME, find_ready_url
from agentix.errors import SandboxNotFoundError
from agentix.version import VERSION
from agentix_namespaces import mock_agent, mock_dataset


def test_defaults_are_those_of_the_release() -> None:
    config = SandboxConfig(image="task")
    assert config.runtime == DEFAULT_RUNTIME == f"agentix/runtime:{VERSION}"
    assert (config.namespaces, config.env, config.network) == ((), {}, None)


def test_modules_stand_for_their_images() -> None:
    config = SandboxConfig(image="task", namespaces=[mock_agent, "other:1", mock_dataset])
    assert config.namespace_images == (mock_agent.__image__, "other:1", mock_dataset.__image__)


def test_module_without_an_image_is_named() -> None:
    with pytest.raises(ValidationError, match="module types has no __image__"):
        SandboxConfig(image="task", namespaces=[types])


@pytest.mark.parametrize(
    "wrong",
    [
        {"imgae": "task"},
        {"namespaces": "agentix/one:1"},
        {"namespaces": [""]},
        {"namespaces": [5]},
        {"network": "overlay"},
        {"memory": 0},
        {"memory": 6 * 1024 * 1024 - 1},
        {"cpus": 0},
        {"cpus": float("nan")},
        {"pids": 0},
        {"user": ""},
        {"runtime": ""},
        {"start_timeout": 0},
        {"start_timeout": float("inf")},
        {"env": {"A": 1}},
    ],
    ids=str,
)
def test_wrong_or_unknown_field_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        SandboxConfig(**{"image": "task", **wrong})
    assert {str(error["loc"][0]) for error in caught.value.errors()} == set(wrong)


def test_configuration_can_not_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        SandboxConfig(image="task").image = "other"


def test_token_is_not_in_what_a_sandbox_prints() -> None:
    assert "secret" not in repr(Sandbox("id", "unix:/socket", "secret"))


class Remembering(Deployment):
    """A deployment without sandboxes, which notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    async def create(self, config: SandboxConfig) -> Sandbox:
        self.calls.append(f"create {config.image}")
        return Sandbox("one", "unix:/socket", "token")

    async def delete(self, sandbox_id: str) -> None:
        self.calls.append(f"delete {sandbox_id}")
        if self.calls.count(f"delete {sandbox_id}") > 1:
            raise SandboxNotFoundError(sandbox_id)

    async def get(self, sandbox_id: str) -> SandboxInfo:
        raise SandboxNotFoundError(sandbox_id)

    async def list(self) -> Sequence[SandboxInfo]:
        return []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: Any) -> None:
        pass


async def test_session_deletes_its_sandbox_when_its_block_fails() -> None:
    deployment = Remembering()
    with pytest.raises(ZeroDivisionError):
        async with deployment.session(SandboxConfig(image="task")) as sandbox:
            raise ZeroDivisionError(sandbox.id)
    assert deployment.calls == ["create task", "delete one"]


async def test_session_lets_its_block_delete_the_sandbox() -> None:
    deployment = Remembering()
    async with deployment.session(SandboxConfig(image="task")) as sandbox:
        await deployment.delete(sandbox.id)
    assert deployment.calls == ["create task", "delete one", "delete one"]


async def lines(*given: bytes) -> AsyncIterator[bytes]:
    for line in given:
        yield line


async def test_ready_line_is_found_among_others() -> None:
    output = lines(b"warning\n", b"agentix-server ready unix:/a b\n", b"agentix-server ready no\n")
    assert await find_ready_url(output) == "unix:/a b"


async def test_output_without_a_ready_line_has_no_url() -> None:
    assert await find_ready_url(lines(b"agentix-server: refusing\n")) is None
