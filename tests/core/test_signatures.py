"""Any signature: a call through the wire sees what a call of the function itself sees."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agentix.stub import stub_of

NAMES = ["first", "second", "third", "fourth", "fifth"]
KINDS = [
    Parameter.POSITIONAL_ONLY,
    Parameter.POSITIONAL_OR_KEYWORD,
    Parameter.VAR_POSITIONAL,
    Parameter.KEYWORD_ONLY,
    Parameter.VAR_KEYWORD,
]


@dataclass(frozen=True)
class Call:
    """A function of a made-up signature, and arguments that fit it."""

    source: str
    args: tuple[int, ...]
    kwargs: dict[str, int]

    def function(self) -> Callable[..., dict[str, Any]]:
        """Compiles the function, which gives its own parameters."""
        module: dict[str, Any] = {"__name__": __name__}
        exec(self.source, module)
        made: Callable[..., dict[str, Any]] = module["made"]
        return made


@st.composite
def calls(draw: st.DrawFn) -> Call:
    """Makes a function whose parameters are of any kinds, with or without defaults."""
    numbers = st.integers(0, 9)
    positional = draw(st.integers(0, 3))
    only = draw(st.integers(0, positional))
    required = draw(st.integers(0, positional))
    named = draw(st.lists(st.booleans(), max_size=2))  # whether each has a default
    rest, more = draw(st.booleans()), draw(st.booleans())
    texts = [
        f"{name}: int" + ("" if index < required else " = -1")
        for index, name in enumerate(NAMES[:positional])
    ]
    if only:
        texts.insert(only, "/")
    if rest or named:
        texts.append("*rest: int" if rest else "*")
    keywords = NAMES[positional : positional + len(named)]
    texts += [
        f"{name}: int" + (" = -2" if optional else "")
        for name, optional in zip(keywords, named, strict=True)
    ]
    if more:
        texts.append("**more: int")
    given_by_position = draw(st.integers(only if only <= required else required, positional))
    args = [draw(numbers) for _ in range(given_by_position)]
    if rest and given_by_position == positional:
        args += draw(st.lists(numbers, max_size=3))
    kwargs = {
        name: draw(numbers)
        for index, name in enumerate(NAMES[:positional])
        if index >= max(only, given_by_position) and (index < required or draw(st.booleans()))
    }
    kwargs |= {
        name: draw(numbers)
        for name, optional in zip(keywords, named, strict=True)
        if not optional or draw(st.booleans())
    }
    if more:
        kwargs |= draw(st.dictionaries(st.sampled_from(["extra", "other"]), numbers))
    source = f"def made({', '.join(texts)}):\n    return dict(locals())\n"
    return Call(source, tuple(args), kwargs)


@given(calls())
def test_arguments_arrive_as_a_call_of_the_function_has_them(call: Call) -> None:
    function = call.function()
    stub = stub_of(function)
    encoded = stub.encode_arguments(call.args, call.kwargs)
    arguments = stub.decode_arguments(json.loads(encoded.args), json.loads(encoded.kwargs))
    seen = function(*arguments.args, **arguments.kwargs)
    assert seen == function(*call.args, **call.kwargs)
