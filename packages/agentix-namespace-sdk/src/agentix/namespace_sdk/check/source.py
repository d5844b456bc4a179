"""Source trees and entries of closures, held against the rules that need no import.

check_source ──► manifest (AGX1xx) ──► project and links (AGX206 to AGX208)
                                  └──► check_tree ──► layout (AGX2xx) and stubs (AGX3xx)
                                                 └──► the import, in a child process (AGX4xx)
"""

import ast
import builtins
import json
import os
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from agentix.layout import shipped
from agentix.manifest import NAMESPACE_PARENT, NamespaceManifest
from agentix.namespace_sdk.check.importing.parent import TIME_LIMIT, ImportingChild
from agentix.namespace_sdk.check.rules import Breach, Finding, rule
from agentix.namespace_sdk.check.tree import NamespacePackage, Tree

__all__ = ["check_manifest", "check_source", "check_tree"]

MODULES = ("__init__.py", "_impl.py", "_register.py")

PYDANTIC_MODULES = {"annotated_types", "pydantic", "pydantic_core", "typing_extensions"}
"""Modules that pydantic brings."""

OTHER_DISTRIBUTIONS = {"agentserver", "client", "docker", "local", "namespace_sdk", "oanix"}
"""Subpackages of `agentix` that the runtime does not bring."""

IMPORT_ERRORS = {"ImportError", "ModuleNotFoundError", "Exception"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def check_source(path: Path, time_limit: float = TIME_LIMIT) -> list[Finding]:
    """Check the source tree of a namespace.

    Args:
        path: The directory with `manifest.json` and `agentix_namespaces/<name>/`.
        time_limit: Seconds that its import may take, which happens in a child process.

    Returns:
        What was found.
    """
    tree = Tree.of_source(path)
    manifest, findings = check_manifest(tree)
    if manifest is not None:
        package = NamespacePackage(tree, manifest)
        for broken in (other_package_in_wheel, other_version_in_project, escaping_link):
            findings += broken(package)
        findings += check_tree(package, time_limit)
    return findings


def check_manifest(tree: Tree) -> tuple[NamespaceManifest | None, list[Finding]]:
    """Read the manifest.

    Returns:
        The manifest where it is valid, and what is wrong with it where it is not.
    """
    stages = (
        [no_manifest],
        [not_an_object],
        [other_abi, missing_text, other_version, other_package],
    )
    for rules in stages:
        if findings := [finding for broken in rules for finding in broken(tree)]:
            return None, findings
    return NamespaceManifest.model_validate_json(tree.manifest_bytes, strict=True), []


def check_tree(package: NamespacePackage, time_limit: float = TIME_LIMIT) -> list[Finding]:
    """Check the package of a namespace whose manifest is valid."""
    if not package.directory.is_dir():
        return [*no_package(package), *parent_init(package)]
    # The import goes on while the files are read.
    with ImportingChild(package.tree.python, package.name, time_limit) as child:
        broken_modules = [*missing_module(package), *syntax_error(package)]
        findings = [
            *broken_modules,
            *parent_init(package),
            *no_marker(package),
            *foreign_import(package),
        ]
        report = child.finish(package)
    findings += [*stub_with_body(package, report.bound), *unbound_stub(package, report.bound)]
    # The import fails because of a missing module or a wrong syntax, which is a finding already.
    known = {"AGX401"} if broken_modules else set()
    return findings + [item for item in report.findings if item.code not in known]


# The manifest


@rule("AGX101", "no manifest", fix="write `manifest.json` beside `agentix_namespaces`")
def no_manifest(tree: Tree) -> Iterator[Breach]:
    """The manifest is what makes a mount a namespace: the runtime skips a mount that has none."""
    try:
        _ = tree.manifest_bytes
    except OSError as error:
        reason = f"{tree.manifest_file.name} cannot be read: {error.strerror}"
        yield tree.breach(tree.manifest_file, reason)


@rule("AGX102", "the manifest is not a JSON object", fix="fix the syntax of the manifest")
def not_an_object(tree: Tree) -> Iterator[Breach]:
    """The manifest is one JSON object.

    A comma goes between its fields, and none after the last one. What is not even JSON makes the
    runtime skip the mount.
    """
    try:
        fields = json.loads(tree.manifest_bytes)
    except json.JSONDecodeError as error:
        yield tree.breach(tree.manifest_file, error.msg, error.lineno)
    except UnicodeDecodeError as error:
        yield tree.breach(tree.manifest_file, f"it is not UTF-8: {error.reason}")
    else:
        if not isinstance(fields, dict):
            reason = f"it is a {type(fields).__name__}, not an object"
            yield tree.breach(tree.manifest_file, reason, 1)


@rule("AGX103", "another closure ABI", fix='write `"abi": 1`, the number')
def other_abi(tree: Tree) -> Iterator[Breach]:
    """`abi` is the version of the layout below `/nix`.

    This version of Agentix mounts closures of the ABI 1, a number; a runtime skips all others,
    because it would not know where to look.
    """
    yield from _wrong_fields(tree, "abi")


@rule("AGX104", "a field of the manifest is missing or not a text", fix="give the field a text")
def missing_text(tree: Tree) -> Iterator[Breach]:
    """`name`, `version` and `package` are texts that every manifest has.

    `description` and `kind` are texts where they are there. Fields beyond these may be anything.
    """
    yield from _wrong_fields(tree, "text")


@rule("AGX105", "the version is not a semantic version", fix="write three numbers, such as `1.0.0`")
def other_version(tree: Tree) -> Iterator[Breach]:
    """`version` is a semantic version: three numbers without leading zeros.

    `-` and `+` with more may follow. Tags of images are made of it.
    """
    yield from _wrong_fields(tree, "version")


@rule(
    "AGX106",
    "the package is not `agentix_namespaces.<name>`",
    fix="name the import package, one level below `agentix_namespaces`",
)
def other_package(tree: Tree) -> Iterator[Breach]:
    """`package` is the import path of the stubs and the key by which calls are routed.

    It is exactly one level below `agentix_namespaces`, and what comes after the dot is a Python
    identifier.
    """
    yield from _wrong_fields(tree, "package")


def _wrong_fields(tree: Tree, aspect: str) -> Iterator[Breach]:
    """Yield the breaches in one of the aspects `abi`, `version`, `package` and `text`."""
    try:
        NamespaceManifest.model_validate_json(tree.manifest_bytes, strict=True)
    except ValidationError as error:
        for item in error.errors(include_url=False, include_context=False):
            if _aspect(item) == aspect:
                field = _field(item)
                line = _line_of_field(field, tree.manifest_bytes.decode())
                yield tree.breach(tree.manifest_file, f"{field}: {_describe(item)}", line)


def _field(item: ErrorDetails) -> str:
    return str(item["loc"][0]) if item["loc"] else "manifest"


def _aspect(item: ErrorDetails) -> str:
    field = _field(item)
    if field != "abi" and item["type"] in ("missing", "string_type"):
        return "text"
    return field if field in ("abi", "version", "package") else "text"


def _describe(item: ErrorDetails) -> str:
    if item["type"] == "missing":
        return "the field is missing"
    given = json.dumps(item["input"])
    if item["type"] == "string_pattern_mismatch":
        wanted = {"version": "a semantic version", "package": f"{NAMESPACE_PARENT}.<name>"}
        return f"{given} is not {wanted[_field(item)]}"
    return f"{given}: {item['msg']}"


def _line_of_field(field: str, text: str) -> int:
    """Return the line of a field of the manifest; the first one where the field is missing."""
    found = re.search(rf"{re.escape(json.dumps(field))}\s*:", text)
    return 1 if found is None else text.count("\n", 0, found.start()) + 1


# The layout of the package


@rule(
    "AGX201", "the package is not there", fix="make the directory that the manifest's package names"
)
def no_package(package: NamespacePackage) -> Iterator[Breach]:
    """The package that the manifest names lies where Python finds it.

    That is `agentix_namespaces/<name>/` in a source tree and
    `entry/python/agentix_namespaces/<name>/` in a closure. A dash in the namespace's name is an
    underscore in the package's.
    """
    if not package.directory.is_dir():
        shown = package.tree.show(package.directory)
        yield package.tree.breach(package.tree.manifest_file, f"{shown} is not a directory")


@rule(
    "AGX202",
    "`agentix_namespaces` has an `__init__.py`",
    fix="remove it: it hides all other namespaces",
)
def parent_init(package: NamespacePackage) -> Iterator[Breach]:
    """Each mount adds its own directory to the import path.

    All of them have a part of the package `agentix_namespaces`. Python joins the parts only as
    long as none of them has an `__init__.py`; one that does hides the others, and the runtime
    skips it.
    """
    init = package.tree.python / NAMESPACE_PARENT / "__init__.py"
    if init.exists():
        reason = "all namespaces share this import package, so it has no __init__.py"
        yield package.tree.breach(init, reason, 1)


@rule("AGX203", "a module is missing", fix="write `__init__.py`, `_impl.py` and `_register.py`")
def missing_module(package: NamespacePackage) -> Iterator[Breach]:
    """A package has three modules.

    The stubs are in `__init__.py`, which callers import; the impls in `_impl.py`, which only the
    sandbox imports; and `register` in `_register.py`. Each of them may be a package of several
    modules.
    """
    for name in MODULES:
        path = package.directory / name
        if not path.is_file() and not path.with_suffix("").is_dir():
            yield package.tree.breach(path, f"{name} is missing")


@rule("AGX204", "no `py.typed`", fix="add an empty `py.typed`, so that type checkers use the stubs")
def no_marker(package: NamespacePackage) -> Iterator[Breach]:
    """Type checkers look into an installed package only where it has a file `py.typed` (PEP 561).

    Without it, callers of the stubs get `Any`, and no mistake in a call is found.
    """
    path = package.directory / "py.typed"
    if not path.is_file():
        yield package.tree.breach(path, "py.typed is missing")


@rule("AGX205", "a module does not compile", fix="fix its syntax")
def syntax_error(package: NamespacePackage) -> Iterator[Breach]:
    """A module has to compile with the Python that runs the check.

    A closure carries bytecode, so a module that does not compile cannot be built either.
    """
    for path, syntax in package.parsed.items():
        if isinstance(syntax, SyntaxError):
            yield package.tree.breach(path, syntax.msg, syntax.lineno)
        elif isinstance(syntax, ValueError):
            yield package.tree.breach(path, str(syntax))


@rule(
    "AGX206",
    "the wheel ships another import package",
    fix='write `packages = ["agentix_namespaces"]` in `[tool.hatch.build.targets.wheel]`',
)
def other_package_in_wheel(package: NamespacePackage) -> Iterator[Breach]:
    """Callers install the wheel for its stubs.

    Hatch puts the last part of each of `packages` at the top of the wheel:
    `agentix_namespaces/greeter` would be importable as `greeter`, and not as
    `agentix_namespaces.greeter`.
    """
    path = package.tree.root / "pyproject.toml"
    try:
        project = package.tree.project
    except ValueError as error:
        yield package.tree.breach(path, str(error))
        return
    packages = _look_up(project, "tool", "hatch", "build", "targets", "wheel", "packages")
    if isinstance(packages, list) and packages != [NAMESPACE_PARENT]:
        top = packages[-1].rpartition("/")[2]
        reason = f"packages = {packages} ships {top!r} as a top package"
        yield package.tree.breach(path, reason, _line_of_key("packages", path))


@rule(
    "AGX207",
    "the project has another version than the manifest",
    fix="write the same version into `pyproject.toml` and `manifest.json`",
)
def other_version_in_project(package: NamespacePackage) -> Iterator[Breach]:
    """The wheel has the stubs that callers import, and the image has the impls behind them.

    Two versions for one state of the source leave a caller without a way to tell which belong
    together.
    """
    try:
        version = _look_up(package.tree.project, "project", "version")
    except ValueError:
        return  # a malformed file is AGX206
    if isinstance(version, str) and version != package.manifest.version:
        path = package.tree.root / "pyproject.toml"
        reason = f"version {version}, and the manifest's is {package.manifest.version}"
        yield package.tree.breach(path, reason, _line_of_key("version", path))


def _look_up(value: Any, *keys: str) -> Any:
    """Return what lies in nested tables, or `None`."""
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _line_of_key(key: str, path: Path) -> int | None:
    lines = path.read_text(encoding="utf-8").splitlines()
    numbers = (n for n, line in enumerate(lines, 1) if line.partition("=")[0].strip() == key)
    return next(numbers, None)


@rule(
    "AGX208",
    "a link leads out of what is shipped",
    fix="put the file itself there, or link to one in the same directory by a relative path",
)
def escaping_link(package: NamespacePackage) -> Iterator[Breach]:
    """A build takes the package and `bin`, and their links as they are.

    A link to somewhere else, or by an absolute path, works in the source tree and nowhere in a
    sandbox: what it leads to is not there, or is something of the task image.
    """
    for root in (package.directory, package.tree.root / "bin"):
        real = Path(os.path.realpath(root))
        for link in _links(root) if root.is_dir() else ():
            target, end = link.readlink(), Path(os.path.realpath(link))
            if target.is_absolute() or not end.is_relative_to(real) or not end.exists():
                shown = package.tree.show(root)
                reason = f"it leads to {target}, which is not shipped below {shown}"
                yield package.tree.breach(link, reason)


def _links(directory: Path) -> Iterator[Path]:
    for path in shipped(directory):
        if path.is_symlink():
            yield path
        elif path.is_dir():
            yield from _links(path)


# Stubs and imports


@rule(
    "AGX301",
    "a stub has a body",
    fix="let its body be `raise NotImplementedError(...)`, and put the code into `_impl.py`",
)
def stub_with_body(package: NamespacePackage, bound: Collection[str] | None) -> Iterator[Breach]:
    """A stub is a contract, and all of it is in its signature.

    Whoever calls it directly, instead of through `client.remote`, shall notice at once; so its
    body is one `raise`, after the docstring. Public functions that `register()` does not bind may
    have a body.
    """
    for function in _public_functions(package):
        if bound is not None and function.name in bound and not _only_raises(function):
            reason = f"the stub {function.name!r} does something else than raise when it is called"
            yield package.tree.breach(package.stubs, reason, function.lineno)


@rule("AGX302", "a stub is not bound", fix="bind it in `register()`, or remove it")
def unbound_stub(package: NamespacePackage, bound: Collection[str] | None) -> Iterator[Breach]:
    """A public function that only raises, or has no body, looks like a stub to callers.

    A call of it is answered by `MethodNotFound`, unless `register()` binds an impl to it.
    """
    for function in _public_functions(package):
        is_bound = _only_raises(function) if bound is None else function.name in bound
        if not is_bound and (_only_raises(function) or _is_empty(function)):
            reason = f"register() does not bind the stub {function.name!r}"
            yield package.tree.breach(package.stubs, reason, function.lineno)


def _public_functions(package: NamespacePackage) -> Iterator[Function]:
    syntax = package.parsed.get(package.stubs)
    for node in syntax.body if isinstance(syntax, ast.Module) else ():
        if isinstance(node, Function) and not node.name.startswith("_"):
            yield node


def _only_raises(function: Function) -> bool:
    body = _body(function)
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _is_empty(function: Function) -> bool:
    match _body(function):
        case [] | [ast.Pass()] | [ast.Expr(ast.Constant(value=builtins.Ellipsis))]:
            return True
    return False


def _body(function: Function) -> list[ast.stmt]:
    has_docstring = ast.get_docstring(function, clean=False) is not None
    return function.body[1:] if has_docstring else function.body


@rule(
    "AGX403",
    "the package imports what the runtime does not have",
    fix="use the standard library, pydantic and `agentix`, or put the code into a program in `bin`",
)
def foreign_import(package: NamespacePackage) -> Iterator[Breach]:
    """An impl runs in the runtime's interpreter.

    That has the standard library, pydantic and `agentix`, and nothing that your machine may have
    beside them. Heavy parts belong into a program in `bin`, which brings what it needs. A build
    can also bring wheels of pure Python, and what these hold may be imported. Imports that may
    fail (in `try` with `except ImportError`) and those for type checkers only are not counted.
    """
    for path, syntax in package.modules:
        for name, line in _imports(syntax):
            if not _is_available(name, package):
                reason = f"{name!r} is neither of the standard library, nor pydantic, nor agentix"
                yield package.tree.breach(path, reason, line)


def _is_available(name: str, package: NamespacePackage) -> bool:
    match name.split("."):
        case ["agentix", part, *_]:
            return part not in OTHER_DISTRIBUTIONS
        case [top, *_] if top == NAMESPACE_PARENT:
            return f"{name}.".startswith(f"{package.name}.") or name == NAMESPACE_PARENT
        case [top, *_]:
            known = PYDANTIC_MODULES | sys.stdlib_module_names | package.tree.bundled_modules
            return top == "agentix" or top in known
    raise AssertionError(name)


def _imports(syntax: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the absolute names that a module cannot do without, with their lines."""
    waiting: list[ast.AST] = [syntax]
    while waiting:
        node = waiting.pop()
        match node:
            case ast.Import():
                yield from ((alias.name, node.lineno) for alias in node.names)
            case ast.ImportFrom(level=0, module=str(name)):
                yield name, node.lineno
            case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
                waiting += node.orelse
            case ast.Try() if any(map(_catches_import_errors, node.handlers)):
                waiting += [*node.handlers, *node.orelse, *node.finalbody]
            case _:
                waiting += ast.iter_child_nodes(node)


def _catches_import_errors(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)}
    return not IMPORT_ERRORS.isdisjoint(names)
