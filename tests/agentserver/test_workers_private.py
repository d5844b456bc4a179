"""What an organism keeps from its handlers, though they are imported from its directory."""

from pathlib import Path

import pytest

from agentix.agentserver.assembly import private_paths, temporary_directory_if_empty
from agentix.agentserver.spec import parse_spec
from agentix.agentserver.worker.pool import WorkerPool
from tests.agentserver.escape import attack
from tests.agentserver.workers import settings

SPEC = {
    "organism": {"name": "o", "identity": "o.key", "users": "users.yaml"},
    "oob": {"enabled": True, "unix_socket": "/run/o.sock"},
    "llm": [{"base_url": "http://127.0.0.1:1/v1", "model": "m", "key_file": "llm.key"}],
    "runtime": {"token_file": "token"},
}


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of an organism whose files everyone may read."""
    tmp_path.chmod(0o755)
    for name in ("organism.yaml", "users.yaml", "o.key", "llm.key", "token", "handlers.py"):
        (tmp_path / name).write_text("0123456789")
    for name in ("schemas/secret.listener", "journal"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def test_private_paths_are_keys_users_journal_and_topology(directory: Path) -> None:
    private = private_paths(parse_spec(SPEC), directory)
    names = ("journal", "llm.key", "o.key", "organism.yaml", "schemas", "token", "users.yaml")
    assert private == ("/run/o.sock", *(str(directory / name) for name in names))


async def test_handlers_read_their_own_modules_and_nothing_private(directory: Path) -> None:
    private = private_paths(parse_spec(SPEC), directory)
    async with WorkerPool(settings(readable=(str(directory),), hidden=private)) as workers:
        assert await attack(workers, "read", f"{directory}/handlers.py") == "10"
        for name in ("organism.yaml", "users.yaml", "o.key", "llm.key", "token"):
            assert await attack(workers, "read", f"{directory}/{name}") in ("0", "refused: EACCES")
        for name in ("schemas", "journal"):
            listed = await attack(workers, "list_directory", f"{directory}/{name}")
            assert listed in ("[]", "refused: EACCES")


def test_a_kept_directory_stays_only_with_something_in_it(tmp_path: Path) -> None:
    with temporary_directory_if_empty(tmp_path / "a" / "schemas"):
        assert (tmp_path / "a" / "schemas").is_dir()
    assert not (tmp_path / "a" / "schemas").exists()
    with temporary_directory_if_empty(tmp_path / "schemas"):
        (tmp_path / "schemas" / "x").mkdir()
    assert (tmp_path / "schemas" / "x").exists()
