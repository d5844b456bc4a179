# pyright: strict, reportUnnecessaryTypeIgnoreComment=true
"""What a type checker knows of calls of the namespace `oanix`; checked, never run."""

from pathlib import Path
from typing import assert_type

from agentix.client import RuntimeClient, Stream
from agentix_namespaces import oanix
from agentix_namespaces.oanix import JobState, LogChunk, Mount, RunResult, Script, Wasi


async def calls(client: RuntimeClient) -> None:
    """Calls each function with what it takes, and one with what it does not."""
    mounts = [Mount("/w", Path("/workspace"), readonly=True)]
    run = client.remote(oanix.run_wasi, Path("/p.wasm"), ["a"], mounts=mounts, timeout=1.5)
    assert_type(await run, RunResult)
    assert_type(await client.remote(oanix.submit, Wasi(Path("/p.wasm")), retries=1), str)
    assert_type(await client.remote(oanix.submit, Script("/w/s.sh", ["a"]), after=["1"]), str)
    assert_type(await client.remote(oanix.submit_spec, {"kind": {"type": "wasi"}}), str)
    assert_type(await client.remote(oanix.status, "1"), JobState)
    assert_type(await client.remote(oanix.cancel, "1"), JobState)
    assert_type(client.remote(oanix.logs, "1", follow=False), Stream[LogChunk])
    await client.remote(oanix.submit, "p.wasm")  # type: ignore[call-overload]
