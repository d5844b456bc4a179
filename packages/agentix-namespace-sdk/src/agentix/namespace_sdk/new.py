"""Make a namespace from a template: an agent, a dataset or a tool."""

import argparse
import json
import keyword
import re
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from agentix.errors import UsageError
from agentix.version import VERSION

__all__ = ["HELP", "NewNamespace", "add_arguments", "render", "run"]

HELP = "make a namespace from a template"

DEFAULT_KIND = "tool"
KINDS = {
    "agent": "Runs an agent's program and streams what it prints.",
    "dataset": "Lists tasks, sets them up and scores them.",
    "tool": "Searches files for a regular expression.",
}
"""What a namespace can be made as, with the default of its description."""

TEMPLATES = Path(__file__).with_name("templates")
SUFFIX = ".jinja"
"""What the names of templates end in, so that no tool takes them for Python."""

RESERVED = {"runtime", "test", "tests"}
"""Names that a deployment, or a test runner, uses for something else."""

LONGEST_NAME = 100
"""Characters of a name: directories, images and distributions are called after it."""

FUNCTIONS = {"agent": "run", "dataset": "list_tasks, score, setup", "tool": "search"}
"""The stubs of each kind, as they are imported."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `agentix-namespace new`."""
    parser.add_argument("name", nargs="?", metavar="NAME", help="such as my-namespace")
    parser.add_argument(
        "--kind",
        choices=KINDS,
        help="an agent wraps a command-line program, a dataset has tasks, a tool is one function",
    )
    parser.add_argument("--description", metavar="TEXT", help="one sentence")
    parser.add_argument(
        "--into", type=Path, default=Path(), metavar="DIRECTORY", help="where it goes; by default ."
    )


def run(options: argparse.Namespace) -> int:
    """Make the namespace that was asked for, and print what to do next.

    Raises:
        UsageError: The name cannot be that of a namespace, or its directory is there already.
    """
    asks = sys.stdin.isatty()
    name = options.name or _ask("name", "", asks)
    if not name:
        raise UsageError("a name is needed: agentix-namespace new my-namespace")
    new = NewNamespace.named(name)
    kind = options.kind or _ask("kind (agent, dataset or tool)", DEFAULT_KIND, asks)
    if kind not in KINDS:
        raise UsageError(f"there is no kind {kind!r}: choose one of {', '.join(KINDS)}")
    description = options.description or _ask("description", KINDS[kind], asks)
    made = render(new.described(kind, description), options.into)
    print(f"made {made}, a namespace of the kind {kind}; next:\n\n  cd {made}\n  pytest")
    return 0


def _ask(question: str, default: str, asks: bool, answer: Callable[[str], str] = input) -> str:
    """Return what the terminal answers; the default where nobody is asked, or nobody answers."""
    if not asks:
        return default
    shown = f" [{default}]" if default else ""
    try:
        return answer(f"{question}{shown}: ").strip() or default
    except EOFError:
        return default


@dataclass(frozen=True)
class NewNamespace:
    """What a template is filled with."""

    slug: str
    """The name for people, directories and images, such as `my-namespace`."""
    module: str
    """The name of the Python package in `agentix_namespaces`, such as `my_namespace`."""
    kind: str = "tool"
    """Which template."""
    description: str = ""
    """One line about it."""

    @classmethod
    def named(cls, name: str) -> Self:
        """Fold a name: `My Namespace`, `my.namespace` and `my_namespace` are `my-namespace`.

        Raises:
            UsageError: What comes out cannot be the name of a Python package, is too long, or is
                reserved.
        """
        slug = re.sub(r"[-_. ]+", "-", name).lower()
        module = slug.replace("-", "_")
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", module):
            raise UsageError(
                f"{name!r} cannot be the name of a Python package: use the letters a to z, digits"
                " and single dashes, beginning with a letter and not ending with a dash"
            )
        if len(module) > LONGEST_NAME:
            raise UsageError(f"the name is too long: it may have {LONGEST_NAME} characters")
        if keyword.iskeyword(module) or keyword.issoftkeyword(module) or module in RESERVED:
            raise UsageError(f"the name {name!r} is reserved: choose another one")
        return cls(slug, module)

    def described(self, kind: str, description: str) -> Self:
        """Return the same namespace with a kind and a description."""
        return replace(self, kind=kind, description=" ".join(description.split()))

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the templates."""
        from agentix.manifest import AGENTIX_CLOSURE_ABI  # which imports pydantic

        return {
            "slug": self.slug,
            "module": self.module,
            "kind": self.kind,
            "description": self.description,
            "quoted_description": json.dumps(self.description, ensure_ascii=False),
            "sentence": self.description.replace("\\", "\\\\").replace('"', '\\"'),
            "functions": FUNCTIONS[self.kind],
            "function": FUNCTIONS[self.kind].partition(",")[0],
            "abi": str(AGENTIX_CLOSURE_ABI),
            "agentix_version": VERSION,
        }


def render(namespace: NewNamespace, into: Path) -> Path:
    """Write a namespace's directory, whole or not at all.

    Args:
        namespace: What to write.
        into: The directory in which the new one is made; it is made too where it is missing.

    Returns:
        The new directory.

    Raises:
        UsageError: It is there already, or cannot be made there.
    """
    # Importing these takes most of the command's time, and every command imports this module.
    from cookiecutter.generate import generate_files  # type: ignore[import-untyped]

    final = into / namespace.slug
    if final.exists() or final.is_symlink():
        raise UsageError(f"{final} is there already: choose another name, or remove it")
    try:
        into.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError(f"{into} is no directory, nor can one be made there") from error
    with tempfile.TemporaryDirectory(prefix=".new-", dir=into) as rendering:
        for part in ("common", namespace.kind):
            generate_files(
                TEMPLATES / part,
                {"cookiecutter": namespace.variables},
                rendering,
                overwrite_if_exists=True,
                accept_hooks=False,
            )
        rendered = Path(rendering, namespace.slug)
        _take_off_suffixes(rendered)
        rendered.rename(final)
    return final


def _take_off_suffixes(directory: Path) -> None:
    """Rename files to their own names, and make programs executable."""
    # Installers of wheels do not keep the modes of data files.
    for path in sorted(directory.rglob(f"*{SUFFIX}")):
        final = path.rename(path.with_suffix(""))
        final.chmod(0o755 if final.parent.name == "bin" else 0o644)
