"""The rules that the text of the modules tells: bodies of stubs, and what is imported."""

import ast
import builtins
import sys
from collections.abc import Collection, Iterator

from agentix.manifest import NAMESPACE_PARENT, NamespaceManifest
from agentix.namespace_sdk.check.finding import Finding
from agentix.namespace_sdk.check.tree import Module, Tree

__all__ = ["check_imports", "check_stubs"]

BROUGHT_BY_PYDANTIC = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions"}
OTHER_DISTRIBUTIONS = {"agentserver", "client", "docker", "local", "namespace_sdk", "oanix"}
"""Subpackages of `agentix` that the runtime does not bring."""

IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_stubs(
    tree: Tree, manifest: NamespaceManifest, bound: Collection[str] | None
) -> Iterator[Finding]:
    """Checks that the body of each stub raises, and that each stub is bound.

    Args:
        tree: The files.
        manifest: What names the package.
        bound: The functions that `register()` binds; `None` where it can not be asked.
    """
    path = tree.package_directory(manifest.package) / "__init__.py"
    syntax = tree.parsed.get(path)
    for function in () if syntax is None else _public_functions(syntax):
        name, only_raises = function.name, _only_raises(function)
        is_bound = only_raises if bound is None else name in bound
        if is_bound and not only_raises:
            reason = f"the stub {name!r} does something else than raise when it is called"
            yield tree.finding("AGX301", path, reason, function.lineno)
        if not is_bound and (only_raises or _is_empty(function)):
            reason = f"register() does not bind the stub {name!r}"
            yield tree.finding("AGX302", path, reason, function.lineno)


def _public_functions(syntax: ast.Module) -> Iterator[Function]:
    for node in syntax.body:
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node


def _only_raises(function: Function) -> bool:
    """Tells whether the body is one `raise`, but for a docstring."""
    body = _body(function)
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _is_empty(function: Function) -> bool:
    """Tells whether the body is nothing, `pass` or `...`, but for a docstring."""
    match _body(function):
        case [] | [ast.Pass()] | [ast.Expr(ast.Constant(value=builtins.Ellipsis))]:
            return True
    return False


def _body(function: Function) -> list[ast.stmt]:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


def check_imports(tree: Tree, manifest: NamespaceManifest) -> Iterator[Finding]:
    """Checks that no module needs what the runtime does not bring, wherever it imports it."""
    for module in tree.modules(manifest.package):
        for name, line in _imports(module):
            if not _is_brought(name, manifest.package, tree.brought):
                reason = f"{name!r} is neither of the standard library, nor pydantic, nor agentix"
                yield tree.finding("AGX403", module.path, reason, line)


def _is_brought(name: str, package: str, more: Collection[str]) -> bool:
    match name.split("."):
        case ["agentix", part, *_]:
            return part not in OTHER_DISTRIBUTIONS
        case [top, *_] if top == NAMESPACE_PARENT:
            return f"{name}.".startswith(f"{package}.") or name == NAMESPACE_PARENT
        case [top, *_]:
            known = BROUGHT_BY_PYDANTIC | sys.stdlib_module_names
            return top == "agentix" or top in known or top in more
    raise AssertionError(name)


def _imports(module: Module) -> Iterator[tuple[str, int]]:
    """Gives the absolute names that a module can not do without, with their lines."""
    waiting: list[ast.AST] = [module.syntax]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                yield from ((alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(name)):
                yield name, node.lineno
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                waiting += node.orelse
            case ast.Try() if any(map(_takes_import_errors, node.handlers)):
                waiting += [*node.handlers, *node.orelse, *node.finalbody]
            case _:
                waiting += ast.iter_child_nodes(node)


def _takes_import_errors(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return not IMPORT_ERRORS.isdisjoint(names)
