"""The tree of errors, and their way across process boundaries."""

import pickle

import pytest

from agentix import errors
from agentix.errors import (
    AgentixError,
    AnswerTooLargeError,
    DeploymentError,
    RemoteCallError,
    RequestError,
    SandboxGoneError,
    SandboxStartError,
    UsageError,
)


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_is_in_the_tree(name: str) -> None:
    kind = getattr(errors, name)
    assert issubclass(kind, AgentixError)
    assert name in (errors.__doc__ or "").split()


def test_gone_failed_wrong_and_too_large_are_classes_of_their_own() -> None:
    kinds = [
        SandboxGoneError,
        RemoteCallError,
        UsageError,
        DeploymentError,
        AnswerTooLargeError,
    ]
    assert not [(a, b) for a in kinds for b in kinds if a is not b and issubclass(a, b)]


@pytest.mark.parametrize(
    "error",
    [
        RemoteCallError("ValueError", "wrong", "Traceback ..."),
        RequestError(413, "too large"),
        SandboxStartError("it ended", 3, "last words"),
        SandboxGoneError("gone"),
        AnswerTooLargeError("larger than 10 bytes", 10, 11),
        AnswerTooLargeError("larger than 10 bytes", 10),
    ],
    ids=lambda error: type(error).__name__,
)
def test_error_survives_a_process_boundary(error: AgentixError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
