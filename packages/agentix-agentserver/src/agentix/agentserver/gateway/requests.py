"""Requests: what a program asks of an organism at its Unix socket, each a line of JSON."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from agentix.agentserver.errors import AgentServerError
from agentix.agentserver.reasons import reasons
from agentix.agentserver.users import UserName

__all__ = [
    "Call",
    "Catalog",
    "Describe",
    "Grant",
    "History",
    "Info",
    "Listen",
    "OwnersRequest",
    "Post",
    "Privileged",
    "Request",
    "RequestError",
    "Revoke",
    "Threads",
    "read_request",
]


class RequestError(AgentServerError, ValueError):
    """A request is not one that there is, or asks for what is not there."""


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    token: str = Field(default="", repr=False)
    """Whose request it is."""


class Post(_Request):
    """Posts a payload."""

    op: Literal["post"]
    message: str
    """The payload."""
    thread: str | None = None
    """The thread to go on with."""


class Call(_Request):
    """Posts a payload, and waits for what comes back."""

    op: Literal["call"]
    message: str
    """The payload."""
    thread: str | None = None
    """The thread to go on with."""
    seconds: float = Field(default=60.0, allow_inf_nan=False)
    """How long to wait."""


class Listen(_Request):
    """Streams events."""

    op: Literal["listen"]
    thread: str | None = None
    """The thread that they are of."""
    after_seq: int = 0
    """The number of the last event that is known."""


class History(_Request):
    """Streams the messages of a thread."""

    op: Literal["history"]
    thread: str
    """The thread."""


class Threads(_Request):
    """Lists threads."""

    op: Literal["threads"]


class Describe(_Request):
    """Describes a listener."""

    op: Literal["describe"]
    capability: str
    """Its name."""


class Catalog(_Request):
    """Describes all listeners that may be called."""

    op: Literal["catalog"]


class OwnersRequest(_Request):
    """What is for whoever started the organism, and for no other principal."""


class Info(OwnersRequest):
    """Tells what runs."""

    op: Literal["info"]


class Grant(OwnersRequest):
    """Makes a token for a principal."""

    op: Literal["grant"]
    principal: UserName
    """Its name."""
    roots: tuple[str, ...] | None = None
    """The root tags that it may send; all where there are none given."""


class Revoke(OwnersRequest):
    """Ends the token of a principal."""

    op: Literal["revoke"]
    principal: str
    """Its name."""


class Privileged(OwnersRequest):
    """Carries a signed command out."""

    op: Literal["privileged"]
    signed: str
    """The `privileged-msg`."""


Request = Annotated[
    Post
    | Call
    | Listen
    | History
    | Threads
    | Describe
    | Catalog
    | Info
    | Grant
    | Revoke
    | Privileged,
    Field(discriminator="op"),
]

REQUEST: TypeAdapter[Request] = TypeAdapter(Request)


def read_request(line: bytes) -> Request:
    """Reads a request.

    Raises:
        RequestError: It is none; nothing that was given is shown, because tokens are.
    """
    try:
        return REQUEST.validate_json(line)
    except ValidationError as error:
        raise RequestError(f"no request: {reasons(error, ())}") from None
