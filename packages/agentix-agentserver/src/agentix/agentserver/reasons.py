"""Reasons: what is wrong with data that a model refuses, in words of YAML and not of Python."""

from collections.abc import Iterable
from difflib import get_close_matches

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

__all__ = ["reasons"]

WRONG_TYPES = {
    "finite_number": "a number is needed here that is neither infinite nor .nan",
    "dict_type": "keys with values are needed here",
    "model_type": "keys with values are needed here, such as `name: library`",
    "string_type": "a text is needed here; put quotes around what YAML takes for something else",
    "tuple_type": "a list is needed here, such as [one, two]",
}


def reasons(error: ValidationError, models: Iterable[type[BaseModel]]) -> str:
    """Gives what is wrong, and where, one reason after the other; what was given is not shown.

    Args:
        error: Why the data is refused.
        models: The models whose keys may have been meant.
    """
    names = sorted({name for model in models for name in model.model_fields})
    details = error.errors(include_input=False, include_url=False)
    return "; ".join(_reason(detail, names) for detail in details)


def _reason(detail: ErrorDetails, names: list[str]) -> str:
    place = ".".join(map(str, detail["loc"]))
    if detail["type"] == "extra_forbidden":
        return f"{place}: there is no such key{_meant(str(detail['loc'][-1]), names)}"
    message = WRONG_TYPES.get(detail["type"], detail["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message


def _meant(name: str, names: list[str]) -> str:
    close = get_close_matches(name, names, n=1)
    return f"; is {close[0]!r} meant?" if close else ""
