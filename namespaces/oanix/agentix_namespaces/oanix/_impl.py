"""The impls: each builds a command line of `agentix-oanix` and reads what it prints."""

import base64
import json
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any
from uuid import UUID

from . import AgentTool, JobState, LogChunk, Mount, RunResult, Script, Wasi, _command


async def run_wasi(
    program: Path,
    arguments: Sequence[str] = (),
    *,
    mounts: Sequence[Mount] = (),
    environment: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
    fuel: int | None = None,
    memory: int | None = None,
    deterministic: bool = False,
) -> RunResult:
    """Run `agentix-oanix run`."""
    limits = {"timeout": timeout, "fuel": fuel, "memory": memory, "deterministic": deterministic}
    with tempfile.TemporaryDirectory(prefix="agentix-oanix-") as directory:
        report = Path(directory, "result.json")
        words = _command.options({**_view(mounts, environment), **limits, "result": report})
        finished = await _command.run(["run", *words, "--", str(program), *arguments], stdin)
        result = _read_report(report)
    if result is None:
        raise _command.CommandError(_command.reason(finished.stderr))
    return RunResult(**result, stdout=finished.stdout, stderr=finished.stderr)


async def submit(
    job: Wasi | Script | AgentTool,
    *,
    mounts: Sequence[Mount] = (),
    environment: Mapping[str, str] | None = None,
    priority: int = 0,
    retries: int = 0,
    after: Sequence[str] = (),
    tags: Sequence[str] = (),
    timeout: float | None = None,
    fuel: int | None = None,
    memory: int | None = None,
    deterministic: bool = False,
) -> str:
    """Run `agentix-oanix job submit`."""
    values = {
        **_view(mounts, environment),
        "priority": priority,
        "retries": retries,
        "after": list(after),
        "tag": list(tags),
        "timeout": timeout,
        "fuel": fuel,
        "memory": memory,
        "deterministic": deterministic,
    }
    kind, what = _what(job)
    words = [*_command.options(values), *kind, "--", what, *job.arguments]
    return (await _command.call(["job", "submit", *words])).strip()


async def submit_spec(spec: Mapping[str, Any]) -> str:
    """Run `agentix-oanix job submit --spec -`."""
    text = json.dumps(dict(spec)).encode()
    return (await _command.call(["job", "submit", "--spec", "-"], text)).strip()


async def status(job: str) -> JobState:
    """Run `agentix-oanix job show`."""
    found = json.loads(await _command.call(["job", "show", str(UUID(job))]))
    result = found["result"] or {}
    return JobState(
        id=found["spec"]["id"],
        status=found["status"]["status"],
        exit_code=found["status"].get("exit_code"),
        error=found["status"].get("error", ""),
        attempts=len(found["attempts"]),
        value=result.get("value"),
    )


async def cancel(job: str) -> JobState:
    """Run `agentix-oanix job cancel`."""
    await _command.call(["job", "cancel", str(UUID(job))])
    return await status(job)


async def logs(
    job: str, *, follow: bool = True, stdout_offset: int = 0, stderr_offset: int = 0
) -> AsyncIterator[LogChunk]:
    """Run `agentix-oanix job logs --json`."""
    offsets = {"stdout-offset": stdout_offset, "stderr-offset": stderr_offset}
    words = _command.options({"json": True, "follow": follow, **offsets})
    async with aclosing(_command.lines(["job", "logs", *words, str(UUID(job))])) as found:
        async for line in found:
            chunk = json.loads(line)
            yield LogChunk(chunk["stream"], chunk["offset"], base64.b64decode(chunk["data"]))


def _read_report(path: Path) -> dict[str, Any] | None:
    """Read what the command says of a run; `None` where none began."""
    if not path.exists():
        return None
    report = json.loads(path.read_bytes())
    return {name: report[name] for name in RunResult.__dataclass_fields__ if name in report}


def _view(mounts: Sequence[Mount], environment: Mapping[str, str] | None) -> dict[str, list[str]]:
    """Return the options that say what a program sees."""
    seen = [f"{one.guest}={one.directory}{':ro' if one.readonly else ''}" for one in mounts]
    return {"mount": seen, "env": [f"{key}={value}" for key, value in (environment or {}).items()]}


def _what(job: Wasi | Script | AgentTool) -> tuple[list[str], str]:
    """Return the option for a kind of job, and what it is about."""
    match job:
        case Wasi():
            return [], str(job.program)
        case Script():
            return ["--script"], job.path
        case AgentTool():
            return ["--tool"], job.name
