"""What the source of a class says about its fields: trailing comments and attribute docstrings."""

import ast
import inspect
import io
import textwrap
import tokenize

__all__ = ["documentation"]


def documentation(cls: type) -> dict[str, str]:
    """Gives the documentation of the fields of a class and its bases, by name.

    A docstring below a field goes before the comment on its line. Where there is no source, such
    as in a frozen program, nothing is documented this way.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        found |= documentation_of(base)
    return found


def documentation_of(cls: type) -> dict[str, str]:
    """Gives what the body of one class says."""
    try:
        source = textwrap.dedent(inspect.getsource(cls))
        tree = ast.parse(source).body[0]
    except (OSError, TypeError, SyntaxError, IndexError):
        return {}
    if not isinstance(tree, ast.ClassDef):
        return {}
    lines = comments(source)
    found: dict[str, str] = {}
    for statement, following in zip(tree.body, [*tree.body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                text = docstring(following) or lines.get(statement.end_lineno or 0, "")
                found[name] = " ".join(text.split())
    return found


def docstring(statement: ast.stmt | None) -> str:
    """Gives the text of a statement that is only a text."""
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return text
        case _:
            return ""


def comments(source: str) -> dict[int, str]:
    """Gives the comments of a source by line, without the remarks to tools."""
    found: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = token.string.lstrip("#: ").rstrip()
            if not text.startswith(("noqa", "type:", "pragma", "fmt:", "pyright:")):
                found[token.start[0]] = text
    return found
