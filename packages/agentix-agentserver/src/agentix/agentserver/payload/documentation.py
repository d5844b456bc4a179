"""What the source of a class says about its fields: trailing comments and attribute docstrings."""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from types import ModuleType

__all__ = ["documentation"]

TO_TOOLS = ("noqa", "type:", "pragma", "fmt:", "pyright:")
"""How comments begin that are no documentation."""


def documentation(cls: type) -> dict[str, str]:
    """Gives the documentation of the fields of a class and its bases, by name.

    A docstring below a field goes before the comment on its line. Where there is no source, such
    as in a frozen program, nothing is documented this way.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if "__annotations__" in base.__dict__:
            found |= documentation_of(base)
    return found


def documentation_of(cls: type) -> dict[str, str]:
    """Gives what the body of one class says."""
    module = sys.modules.get(cls.__module__)
    found = documented(module).get(cls.__qualname__) if module is not None else None
    return {} if found is None else found


@lru_cache(maxsize=64)
def documented(module: ModuleType) -> dict[str, dict[str, str]]:
    """Gives what the source of a module says of the fields of each class, by qualified name."""
    try:
        source = inspect.getsource(module)
        tree = ast.parse(source)
    except (OSError, TypeError, SyntaxError, ValueError):
        return {}
    lines = source.encode().split(b"\n")
    found: dict[str, dict[str, str]] = {}
    for name, definition in classes(tree, ""):
        found.setdefault(name, dict(fields(definition, lines)))
    return found


def classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef]]:
    """Gives every class below a node, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.ClassDef(name=name):
                yield prefix + name, child
                yield from classes(child, f"{prefix}{name}.")
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield from classes(child, f"{prefix}{name}.<locals>.")
            case ast.stmt() | ast.excepthandler() | ast.match_case():
                yield from classes(child, prefix)


def fields(definition: ast.ClassDef, lines: list[bytes]) -> Iterator[tuple[str, str]]:
    """Gives the documentation of each field in the body of a class."""
    body = definition.body
    ends = {statement.end_lineno: statement.end_col_offset for statement in body}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), end_lineno=int(line)):
                text = docstring(following) or comment(lines[line - 1][ends[line] :])
                yield name, " ".join(text.split())


def docstring(statement: ast.stmt | None) -> str:
    """Gives the text of a statement that is only a text."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return ""


def comment(rest: bytes) -> str:
    """Gives the comment that the rest of a line is, without the remarks to tools."""
    text = rest.decode().lstrip(" \t\f;")
    if not text.startswith("#"):
        return ""
    text = text.lstrip("#: ").rstrip()
    return "" if text.startswith(TO_TOOLS) else text
