"""OanixEnv: a namespace and the machine that runs programs in it."""

import uuid
from dataclasses import replace

import anyio
import anyio.lowlevel
import anyio.to_thread

from agentix.oanix.machine import Machine
from agentix.oanix.namespace import Namespace
from agentix.oanix.program import CompiledProgram
from agentix.oanix.run import RunConfig, RunResult
from agentix.oanix.stop import Cancellation

__all__ = ["OanixEnv"]


class OanixEnv:
    """An environment that programs run in.

    ```python
    import asyncio

    from agentix.oanix import OanixEnv, RunConfig, profile

    async def main() -> int:
        env = OanixEnv(profile.minimal().build())
        result = await env.run_wasi(b'(module (func (export "_start")))', RunConfig(timeout=10))
        return result.exit_code

    assert asyncio.run(main()) == 0
    ```

    Args:
        namespace: What the programs see.
        machine: Compiles and runs them; environments may share one.
    """

    def __init__(self, namespace: Namespace, machine: Machine | None = None) -> None:
        self.id = uuid.uuid4()
        """The environment's own number."""
        self.namespace = namespace
        """What the programs see."""
        self.machine = machine or Machine()
        """Compiles and runs the programs."""

    async def run_wasi(
        self, wasm: bytes | CompiledProgram, config: RunConfig | None = None
    ) -> RunResult:
        """Run a program to its end in a thread; cancelling the call stops the program.

        Args:
            wasm: The module, or a program that the machine has loaded.
            config: What it is started with, and how much it may use.

        Raises:
            ModuleError: The module cannot be run.
        """
        config = config or RunConfig()
        cancellation = config.cancellation or Cancellation()
        config = replace(config, cancellation=cancellation)
        done = anyio.Event()
        async with anyio.create_task_group() as group:
            group.start_soon(_pass_on, cancellation, done)
            try:
                result = await anyio.to_thread.run_sync(
                    self.machine.run, wasm, self.namespace, config
                )
            finally:
                done.set()
        await anyio.lowlevel.checkpoint()
        return result

    def run_wasi_sync(
        self, wasm: bytes | CompiledProgram, config: RunConfig | None = None
    ) -> RunResult:
        """Run a program to its end in the calling thread.

        Raises:
            ModuleError: The module cannot be run.
        """
        return self.machine.run(wasm, self.namespace, config)


async def _pass_on(cancellation: Cancellation, done: anyio.Event) -> None:
    """Cancel a run when the task that waits for it is cancelled."""
    try:
        await done.wait()
    except anyio.get_cancelled_exc_class():
        cancellation.cancel()
        raise
