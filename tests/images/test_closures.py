"""What the closures hold."""

import json
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

from agentix.namespace_sdk.store import Closure
from nix.closures import Builder
from nix.images import Image, find_image

UNCHECKED_HASH = 0b01
"""The flags of a pyc that is taken without a look at its source (PEP 552)."""


def closure_files(closure: Closure) -> Iterator[Path]:
    for path in closure.paths:
        physical = closure.physical(path)
        if physical.is_file():
            yield physical
        for folder, _, names in os.walk(physical):
            yield from (Path(folder, name) for name in names)


def elf_files(closure: Closure) -> Iterator[Path]:
    for path in closure_files(closure):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def dynamic_section(path: Path) -> str:
    command = ["readelf", "--dynamic", "--program-headers", "--wide", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_runtime_is_at_most_70_megabytes(runtime_closure: Closure) -> None:
    size = sum(path.lstat().st_size for path in closure_files(runtime_closure))
    assert size <= 70_000_000


def test_every_needed_library_is_in_the_closure(runtime_closure: Closure) -> None:
    unresolved = []
    for path in elf_files(runtime_closure):
        section = dynamic_section(path)
        search_path = re.findall(r"\(RPATH\)\s+Library rpath: \[(.*)\]", section)
        directories = ":".join(search_path).split(":") if search_path else [str(path.parent)]
        for library in re.findall(r"\(NEEDED\)\s+Shared library: \[(.*)\]", section):
            candidates = [Path(directory, library) for directory in directories]
            if not any(in_closure(candidate, runtime_closure) for candidate in candidates):
                unresolved.append((path, library))
    assert unresolved == []


def in_closure(path: Path, closure: Closure) -> bool:
    if not path.is_relative_to("/nix/store"):
        path = Path("/", path.relative_to(closure.root))
    within = any(path.is_relative_to(store_path) for store_path in closure.paths)
    return within and closure.physical(path).exists()


def test_no_search_path_yields_to_the_environment(runtime_closure: Closure) -> None:
    """DT_RUNPATH comes after LD_LIBRARY_PATH, DT_RPATH before it."""
    assert [path for path in elf_files(runtime_closure) if "RUNPATH" in dynamic_section(path)] == []


def test_every_program_is_started_by_the_closure_s_loader(runtime_closure: Closure) -> None:
    interpreters = {
        interpreter
        for path in elf_files(runtime_closure)
        if path.parent.name == "bin"
        for interpreter in re.findall(r"interpreter: (.*)\]", dynamic_section(path))
    }
    assert interpreters
    assert all(in_closure(Path(interpreter), runtime_closure) for interpreter in interpreters)


def test_the_loader_looks_only_into_the_store(runtime_closure: Closure) -> None:
    interpreter = re.search(r"^exec (\S+)", start_script(runtime_closure), re.MULTILINE)
    assert interpreter is not None
    program = [interpreter.group(1), "-I", "-S", "-c", "import ctypes, sqlite3, ssl"]
    environment = {"LD_DEBUG": "libs"}
    finished = subprocess.run(program, check=True, capture_output=True, text=True, env=environment)
    tried = re.findall(r"trying file=(.*)", finished.stderr)
    assert tried
    assert [path for path in tried if not path.startswith("/nix/")] == []
    assert "search cache=/etc" not in finished.stderr


def start_script(closure: Closure) -> str:
    return (closure.physical(closure.entry) / "bin" / "start").read_text()


def test_start_leaves_the_search_path_of_commands_alone(runtime_closure: Closure) -> None:
    """The PATH that /exec gives to commands is the task image's own."""
    script = start_script(runtime_closure)
    assert re.search(r"\bPATH\b", script) is None
    [unset] = re.findall(r"^unset (LD_.*)$", script, re.MULTILINE)
    assert {"LD_AUDIT", "LD_LIBRARY_PATH", "LD_PRELOAD"} <= set(unset.split())


def test_start_is_run_by_a_shell_without_libraries(runtime_closure: Closure) -> None:
    first_line = start_script(runtime_closure).splitlines()[0]
    assert first_line == f"#!{runtime_closure.entry}/bin/sh"
    shell = runtime_closure.physical(runtime_closure.entry) / "bin" / "sh"
    assert "interpreter" not in dynamic_section(shell)


def test_all_python_is_compiled_and_taken_unchecked(
    runtime_closure: Closure, namespace_closure: Closure
) -> None:
    for closure in (runtime_closure, namespace_closure):
        sources = [path for path in closure_files(closure) if path.suffix == ".py"]
        assert sources
        assert [path for path in sources if not has_unchecked_bytecode(path)] == []


def has_unchecked_bytecode(source: Path) -> bool:
    bytecode = source.parent / "__pycache__" / f"{source.stem}.cpython-313.pyc"
    if not bytecode.exists():
        return False
    with bytecode.open("rb") as file:
        return int.from_bytes(file.read(8)[4:], "little") == UNCHECKED_HASH


def test_nothing_is_writable_by_everyone(
    runtime_closure: Closure, namespace_closure: Closure
) -> None:
    files = [*closure_files(runtime_closure), *closure_files(namespace_closure)]
    modes = {path: path.lstat().st_mode for path in files if not path.is_symlink()}
    assert [path for path, mode in modes.items() if mode & stat.S_IWOTH] == []


def test_namespace_is_laid_out_as_the_protocol_says(namespace_closure: Closure) -> None:
    entry = namespace_closure.physical(namespace_closure.entry)
    manifest = json.loads((entry / "manifest.json").read_text())
    assert (manifest["abi"], manifest["package"]) == (1, "agentix_namespaces.mock_agent")
    package = entry / "python" / "agentix_namespaces" / "mock_agent"
    modules = {path.name for path in package.glob("*.py")}
    assert {"__init__.py", "_impl.py", "_register.py"} <= modules
    assert (entry / "bin" / "mock-agent-cli").is_file()


def test_namespace_does_not_carry_a_python(namespace_closure: Closure) -> None:
    """Namespaces run in the runtime's interpreter; theirs would be 50 MB for nothing."""
    assert [path for path in namespace_closure.paths if "python3" in path.name] == []


def test_documented_namespace_builds_from_a_directory_anywhere(
    builder: Builder, tmp_path: Path
) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "images.md"
    example = re.search(r"```nix\n(.*?)```", page.read_text(), re.DOTALL)
    assert example is not None
    (tmp_path / "default.nix").write_text(example.group(1))
    manifest = {"abi": 1, "name": "elsewhere", "version": "1.2.3"}
    manifest["package"] = "agentix_namespaces.elsewhere"
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    package = tmp_path / "agentix_namespaces" / "elsewhere"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "version").write_text("#!/usr/bin/env python3\nprint(__import__('sys').version)\n")

    image = find_image(str(tmp_path))
    assert image.tag == "agentix/elsewhere:1.2.3"
    closure = builder.build([image.expression])[0]
    script = (closure.physical(closure.entry) / "bin" / "version").read_text()
    interpreter = re.match(r"#!(\S+) -I\n", script)
    assert interpreter is not None
    assert in_closure(Path(interpreter.group(1)), closure)


def test_closure_does_not_change_with_what_it_does_not_hold(
    builder: Builder, namespace_image: Image, namespace_closure: Closure, tmp_path: Path
) -> None:
    copy = tmp_path / "mock-agent"
    shutil.copytree(namespace_image.expression, copy)
    expression = (copy / "default.nix").read_text()
    anywhere = expression.replace("../../nix/namespace.nix", "<agentix/namespace.nix>")
    (copy / "default.nix").write_text(anywhere)
    (copy / "README.md").write_text("Changed.\n")
    cache = copy / "agentix_namespaces" / "mock_agent" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "leftover.pyc").write_bytes(b"")
    assert builder.build([copy])[0].entry == namespace_closure.entry
