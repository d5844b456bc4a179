"""The rules that a namespace is checked by, each with its code.

AGX1xx is about the manifest, AGX2xx about the layout of the package, AGX3xx about stubs and their
annotations, AGX4xx about what happens when the package is imported and registered, and AGX5xx
about images and bundles. A code is never given to another rule.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["RULES", "Rule"]


@dataclass(frozen=True)
class Rule:
    """One thing that the protocol asks for."""

    code: str
    """Its stable code, such as `AGX101`."""
    title: str
    """What is wrong where it is broken."""
    mend: str
    """What to do about it."""
    page: str
    """The page that explains it, below the documentation's root."""


def _rules(*rows: tuple[str, str, str]) -> Mapping[str, Rule]:
    return {code: Rule(code, title, mend, f"sdk/checks/{code}.md") for code, title, mend in rows}


RULES = _rules(
    ("AGX101", "no manifest", "write `manifest.json` beside `agentix_namespaces`"),
    ("AGX102", "the manifest is not a JSON object", "mend the syntax of the manifest"),
    ("AGX103", "another closure ABI", 'write `"abi": 1`, the number'),
    ("AGX104", "a field of the manifest is missing or not a text", "give the field a text"),
    ("AGX105", "the version is not a semantic version", "write three numbers, such as `1.0.0`"),
    (
        "AGX106",
        "the package is not `agentix_namespaces.<name>`",
        "name the import package, one level below `agentix_namespaces`",
    ),
    ("AGX201", "the package is not there", "make the directory that the manifest's package names"),
    (
        "AGX202",
        "`agentix_namespaces` has an `__init__.py`",
        "remove it: it hides all other namespaces",
    ),
    ("AGX203", "a module is missing", "write `__init__.py`, `_impl.py` and `_register.py`"),
    ("AGX204", "no `py.typed`", "add an empty `py.typed`, so that type checkers use the stubs"),
    ("AGX205", "a module does not compile", "mend its syntax"),
    (
        "AGX206",
        "the wheel ships another import package",
        'write `packages = ["agentix_namespaces"]` in `[tool.hatch.build.targets.wheel]`',
    ),
    (
        "AGX207",
        "the project has another version than the manifest",
        "write the same version into `pyproject.toml` and `manifest.json`",
    ),
    (
        "AGX208",
        "a link leads out of what is shipped",
        "put the file itself there, or link to one in the same directory by a relative path",
    ),
    (
        "AGX301",
        "a stub has a body",
        "let its body be `raise NotImplementedError(...)`, and put the code into `_impl.py`",
    ),
    ("AGX302", "a stub is not bound", "bind it in `register()`, or remove it"),
    (
        "AGX303",
        "an impl does not match its stub",
        "give the impl the same parameters, and let it be an asynchronous generator exactly where"
        " the stub streams",
    ),
    (
        "AGX304",
        "an annotation has no JSON form",
        "use types that pydantic can write as JSON and read back",
    ),
    (
        "AGX305",
        "a value does not survive JSON",
        "change the annotation, or say how the value is written and read",
    ),
    (
        "AGX306",
        "a stub is defined elsewhere",
        "define the stub in the package's own `__init__.py`: its module is the routing key",
    ),
    ("AGX401", "the package can not be imported", "mend what the import raises"),
    (
        "AGX402",
        "importing the stubs imports the impls",
        "import `_impl` and `_register` nowhere in `__init__.py`",
    ),
    (
        "AGX403",
        "the package imports what the runtime does not have",
        "use the standard library, pydantic and `agentix`, or put the code into a program in `bin`",
    ),
    ("AGX404", "`register()` fails", "let `register()` give a `Dispatcher`"),
    (
        "AGX405",
        "`register()` is not pure",
        "let `register()` make a new `Dispatcher` and bind to it, and nothing else",
    ),
    (
        "AGX406",
        "importing or `register()` takes too long",
        "do the slow work in an impl, at its first call",
    ),
    ("AGX501", "the image does not declare `VOLUME /nix`", "write `VOLUME /nix` in the Dockerfile"),
    (
        "AGX502",
        "no entry, or one that is not relative",
        "make `/nix/entry` a directory, or a relative link to one in the store",
    ),
    (
        "AGX503",
        "a reference leads out of the closure",
        "copy the whole closure: `nix-store --query --requisites` lists it",
    ),
    (
        "AGX504",
        "a program does not start in a bare image",
        "let its interpreter and libraries be store paths of the closure",
    ),
    ("AGX505", "something is writable for everybody", "take the permission away: `chmod o-w`"),
    (
        "AGX506",
        "the store is missing or not addressed by content",
        "let all of `/nix/store` be `<hash>-<name>`",
    ),
)
"""All rules, by code."""
