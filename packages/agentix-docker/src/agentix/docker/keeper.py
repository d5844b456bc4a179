"""The keeper: ends the sandboxes of owners that are gone, whatever their runtimes do.

    owner ── stdin of an exec ──► guard ─┐
    owner ── stdin of an exec ──► guard ─┴─ in the keeper, a container beside the sandboxes

The keeper is one container for an engine and user, started on demand. It sees the engine's
processes (`--pid host`), may signal them, and has nothing else. Each deployment has a shell of its
own in it, the guard, whose standard input is the lease: the engine ends it when its connection to
the owner ends, which the kernel of the owner does however the owner ends. It does not matter in
which pid namespace or on which host the owner lived. The guard ends with its input. Some seconds
after a guard is gone, however it ended, the keeper kills the first process of each of its
sandboxes, and the kernel all the others of it.

An owner whose guard is gone though it lives, as when the keeper is removed by hand, has those
seconds to hold its sandboxes by another.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from hashlib import sha256

from agentix.docker.cancellation import finish
from agentix.docker.engine import (
    ConflictError,
    ContainerDetails,
    Engine,
    EngineImage,
    ExecStream,
    NotFoundError,
)
from agentix.docker.labels import ROLE, keeper_labels
from agentix.docker.output import STDOUT
from agentix.docker.volumes import volume_name
from agentix.errors import DeploymentError

__all__ = ["Keeper"]

logger = logging.getLogger(__name__)

START_TIMEOUT = 30.0
"""Seconds until a keeper that does not come is an error."""

RETRY_DELAY = 0.05
"""Seconds between looks at a keeper that is coming or going; the engine has no event for both."""

GUARD_TRIES = 5
"""How often a guard is asked, each time another, until that is an error."""

ANSWER_TIMEOUT = 15.0
"""Seconds until a guard that does not answer is an error: its keeper is paused or stopped."""

MEMORY = 256 * 1024 * 1024
"""Bytes for all guards and notes: some KiB for each deployment and sandbox."""

RENEWAL_DELAY = 1.0
"""Seconds until a keeper that could not be started is tried again; twice as many each time."""

LONGEST_RENEWAL_DELAY = 60.0

SHELL = "/nix/entry/bin/sh"

STARTED = """\
# Sets `at` to when a process started, or to nothing where it has ended. Fields are counted after
# the program's name, which may hold anything (proc(5), stat): 3 is 1, 22 is 20.
started() {
  at=
  read -r stat 2>/dev/null <"/proc/$1/stat" || return 0
  set -- ${stat##*) }
  case $1 in [ZX]) ;; *) at=${20} ;; esac
}
"""

KEEP = f"""\
{STARTED}
# Ends the sandboxes of a deployment once its lease is over, unless it has another guard.
end() {{
  sleep "$2"
  while :; do
    for guard in "/run/guards/$1".*; do
      if [ -e "$guard" ]; then return; fi
    done
    left=
    for file in "/run/held/$1".*; do
      pid= since=
      read -r pid since <"$file" && started "$pid"
      if [ -n "$since" ] && [ "$at" = "$since" ]; then
        kill -KILL "$pid"
        left=1
      else
        rm -f "$file"
      fi
    done
    if [ -z "$left" ]; then return; fi
    sleep 1
  done
}}
mkdir /run/guards /run/held
while :; do
  idle=0
  while [ $idle -lt 3 ]; do
    sleep 1
    for guard in /run/guards/*; do
      read -r pid since deployment lease <"$guard" && started "$pid" || continue
      if [ "$at" != "$since" ]; then
        rm "$guard"
        end "$deployment" "$lease" &
      fi
    done
    set -- /run/held/*
    if [ -e "$1" ]; then idle=0; else idle=$((idle + 1)); fi
  done
  # A guard looks for this after it noted a sandbox: either of the two sees the other.
  mkdir /run/closing
  set -- /run/held/*
  if [ ! -e "$1" ]; then exit 0; fi
  rmdir /run/closing
done
"""
"""What the keeper itself does. It ends once no sandbox was held for three seconds."""

GUARD = f"""\
{STARTED}
# What cannot be noted is not answered: the guard ends.
set -e
held=/run/held/$1
started $$
echo "$$ $at $1 $2" >"/run/guards/$1.$$"
echo ready
while read -r verb name container pid; do
  case $verb in
  hold)
    : >"$held.$name"
    while [ -e /run/closing ]; do sleep 0.1; done
    echo held ;;
  guard)
    started "$pid"
    if [ -n "$at" ] && grep -q "$container" "/proc/$pid/cgroup"; then
      echo "$pid $at" >"$held.$name"
      echo guarded
    else
      rm -f "$held.$name"
      echo gone
    fi ;;
  drop)
    rm -f "$held.$name"
    echo dropped ;;
  esac
done
"""
"""The guard of one deployment: a sandbox is held before it is started, and guarded once it runs."""

PROTOCOL = sha256((KEEP + GUARD).encode()).hexdigest()[:8]
"""Part of the keeper's name: a guard of another release would not be understood."""

LIVING = f"""\
{STARTED}
for guard in /run/guards/*; do
  read -r pid since deployment lease <"$guard" && started "$pid" || continue
  if [ "$at" = "$since" ]; then echo "$deployment"; fi
done
"""
"""Prints the deployments that have a guard."""


class _OtherContainerError(DeploymentError):
    """The keeper's name is that of something else."""


@dataclass(slots=True)
class _Sandbox:
    """A sandbox that the guard is to end."""

    container: str = ""
    """Its container's id, once it runs."""
    pid: int = 0
    """The first process of that container, as the engine's host counts it."""

    def requests(self, name: str) -> list[str]:
        """Return what a new guard has to be told of it."""
        hold = f"hold {name}"
        return [hold, f"guard {name} {self.container} {self.pid}"] if self.container else [hold]


class Keeper:
    """The keeper of an engine, as one deployment uses it.

    Args:
        engine: The engine.
        deployment: The deployment's id.
        lease: Seconds that a sandbox outlives its owner.
    """

    def __init__(self, engine: Engine, deployment: str, lease: float) -> None:
        self._engine = engine
        self._deployment = deployment
        self._lease = lease
        self._name = f"agentix-keeper-{PROTOCOL}-{os.geteuid()}"
        self._sandboxes: dict[str, _Sandbox] = {}
        self._image: EngineImage | None = None
        self._guard: _Guard | None = None
        self._turn = asyncio.Lock()
        self._watches: set[asyncio.Task[None]] = set()

    async def hold(self, runtime: EngineImage, name: str) -> None:
        """Note a sandbox that is about to be made; start the keeper where there is none.

        Args:
            runtime: A runtime image whose volume is filled: it has the keeper's shell.
            name: The name of the sandbox's container.

        Raises:
            DeploymentError: The keeper cannot be started.
        """
        self._image = runtime
        self._sandboxes[name] = _Sandbox()
        await self._tell(f"hold {name}")

    async def guard(self, name: str, details: ContainerDetails) -> bool:
        """Have a sandbox ended with this process from now on.

        Returns:
            Whether it still runs.

        Raises:
            DeploymentError: There is no keeper any more, and none can be started.
        """
        self._sandboxes[name] = _Sandbox(details.id, details.pid)
        return await self._tell(f"guard {name} {details.id} {details.pid}") == "guarded"

    async def drop(self, name: str) -> None:
        """Let go of a sandbox that is removed."""
        self._sandboxes.pop(name, None)
        # A guard that is gone is followed by one that is not told of this sandbox.
        if self._guard is None or self._guard.ended.is_set():
            return
        async with self._turn:
            with suppress(DeploymentError):
                await self._guard.ask(f"drop {name}")

    async def tidy(self) -> None:
        """Start a keeper that was made and never started: it ends itself once nobody needs it.

        An owner that dies between the two requests leaves one.
        """
        with suppress(DeploymentError):
            if not (await self._found()).pid:
                await finish(self._start_made())

    async def living(self) -> frozenset[str]:
        """Return the deployments whose owners are known to live: those that have a guard."""
        try:
            await self._found()
            lines = await self._engine.execute(self._name, [SHELL, "-c", LIVING])
        except (NotFoundError, ConflictError):
            return frozenset()
        return frozenset(lines.split())

    async def close(self) -> None:
        """Let go of the guard; what is still held ends as if this process had ended."""
        while self._watches:
            for watch in self._watches:
                watch.cancel()
            await asyncio.wait(self._watches)

    async def _tell(self, request: str) -> str:
        """Ask the guard, or another one where there is none or it is gone.

        Raises:
            DeploymentError: No guard stays.
        """
        async with self._turn:
            for _ in range(GUARD_TRIES):
                # The keeper may have had nothing to do, and end just now.
                with suppress(ConflictError):
                    return await (await self._living_guard()).ask(request)
        raise DeploymentError(f"the keeper {self._name} ends again and again")

    async def _living_guard(self) -> "_Guard":
        if self._guard is None or self._guard.ended.is_set():
            assert self._image is not None
            self._guard = await self._start(self._image)
            watch = asyncio.create_task(self._watch(self._guard))
            self._watches.add(watch)
            watch.add_done_callback(self._watches.discard)
            await finish(self._hold_all(self._guard))
        return self._guard

    async def _hold_all(self, guard: "_Guard") -> None:
        for name, sandbox in list(self._sandboxes.items()):
            for request in sandbox.requests(name):
                await guard.ask(request)

    async def _watch(self, guard: "_Guard") -> None:
        """Take sandboxes up again whose guard ended: without one nobody would end them."""
        try:
            await guard.ended.wait()
        finally:
            await guard.close()
        delay = RENEWAL_DELAY
        while self._sandboxes and self._guard is guard:
            logger.warning("the keeper %s is gone: holding sandboxes by another", self._name)
            try:
                async with self._turn:
                    await self._living_guard()
            except DeploymentError as error:
                logger.warning("no keeper, trying again in %g s: %s", delay, error)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_RENEWAL_DELAY)

    async def _start(self, image: EngineImage) -> "_Guard":
        """Start a guard, and the keeper where there is none.

        Raises:
            DeploymentError: The keeper does not come.
        """
        command = [SHELL, "-c", GUARD, "guard", self._deployment, f"{self._lease:f}"]
        reason: DeploymentError | None = None
        try:
            async with asyncio.timeout(START_TIMEOUT):
                while True:
                    try:
                        await self._found()
                        return await _Guard.start(self._engine, self._name, command)
                    except _OtherContainerError:
                        raise
                    except DeploymentError as error:
                        reason = error  # it is not there, still coming, or just going
                    if not await finish(self._start_keeper(image)):
                        await asyncio.sleep(RETRY_DELAY)
        except TimeoutError:
            raise DeploymentError(f"the keeper {self._name} did not start: {reason}") from reason

    async def _found(self) -> ContainerDetails:
        """Return what the engine knows of the keeper.

        Raises:
            NotFoundError: There is none.
            DeploymentError: Its name is that of something else.
        """
        details = await self._engine.container_details(self._name)
        if details.labels.get(ROLE) != keeper_labels()[ROLE]:
            raise _OtherContainerError(
                f"container {self._name} is not the keeper of sandboxes: remove or rename it"
            )
        return details

    async def _start_keeper(self, image: EngineImage) -> bool:
        """Make and start the keeper; return whether it was there to be started."""
        with suppress(ConflictError):
            await self._engine.create_container(self._name, _keeper(image))
        return await self._start_made()

    async def _start_made(self) -> bool:
        try:
            await self._engine.start_container(self._name)
        except (NotFoundError, ConflictError):
            return False
        except DeploymentError:
            # One that cannot start would stand in everybody's way.
            await self._engine.remove_container(self._name)
            raise
        return True


class _Guard:
    """A shell in the keeper that speaks for one deployment, asked one thing at a time."""

    def __init__(
        self, engine: Engine, keeper: str, stream: ExecStream, stack: AsyncExitStack
    ) -> None:
        self.ended = asyncio.Event()
        """Set once it is gone."""
        self._keeper = keeper
        self._stream = stream
        self._stack = stack
        self._answers: asyncio.Queue[str | None] = asyncio.Queue()
        # An engine may keep the connection to a program whose container is killed.
        self._tasks = [
            asyncio.create_task(self._read(stream.output)),
            asyncio.create_task(self._wait(engine, keeper)),
        ]

    @classmethod
    async def start(cls, engine: Engine, keeper: str, command: Sequence[str]) -> "_Guard":
        """Start the guard and wait until it listens.

        Raises:
            DeploymentError: The keeper is not there, or ends.
        """
        async with AsyncExitStack() as stack:
            stream = await stack.enter_async_context(engine.executing(keeper, command))
            guard = cls(engine, keeper, stream, stack.pop_all())
        try:
            if await guard._answer() != "ready":
                raise ConflictError(f"the keeper {keeper} does not run a guard")
        except BaseException:
            await guard.close()
            raise
        return guard

    async def ask(self, request: str) -> str:
        """Make a request and return the answer, also where the caller is cancelled meanwhile.

        Raises:
            ConflictError: The guard is gone.
            DeploymentError: It does not answer, and counts as gone from now on.
        """
        # An answer that nobody has waited for would be taken for the next one.
        return await finish(self._exchange(request))

    async def _exchange(self, request: str) -> str:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT):
                if not self.ended.is_set():
                    await self._stream.write(f"{request}\n".encode())
                return await self._answer()
        except TimeoutError:
            self._end()
            raise DeploymentError(
                f"the keeper {self._keeper} does not answer within {ANSWER_TIMEOUT:g} s:"
                " continue it if it is paused, remove it otherwise"
            ) from None

    async def _answer(self) -> str:
        answer = None if self.ended.is_set() else await self._answers.get()
        if answer is None:
            raise ConflictError("the keeper is gone")
        return answer

    async def _read(self, output: AsyncIterator[tuple[int, bytes]]) -> None:
        pending = b""
        try:
            async for descriptor, data in output:
                if descriptor != STDOUT:
                    continue
                *lines, pending = (pending + data).split(b"\n")
                for line in lines:
                    self._answers.put_nowait(line.decode(errors="replace"))
        except DeploymentError as error:
            logger.debug("the guard's connection broke: %s", error)
        self._end()

    async def _wait(self, engine: Engine, keeper: str) -> None:
        with suppress(DeploymentError):
            await engine.wait_until_stopped(keeper)
        self._end()

    def _end(self) -> None:
        self.ended.set()
        self._answers.put_nowait(None)

    async def close(self) -> None:
        """End the connection, which ends the guard."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        await self._stack.aclose()


def _keeper(image: EngineImage) -> dict[str, object]:
    """Describe the keeper's container: it sees and signals processes, and can do nothing else."""
    return {
        "Image": f"sha256:{image.digest}",
        "Entrypoint": [SHELL, "-c", KEEP],
        "Cmd": [],
        "User": "0:0",
        "WorkingDir": "/",
        "Labels": keeper_labels(),
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            "AutoRemove": True,
            "Binds": [f"{volume_name(image.digest)}:/nix:ro,nocopy"],
            "CapDrop": ["ALL"],
            "CapAdd": ["KILL"],
            "LogConfig": {"Type": "none"},
            "Memory": MEMORY,
            "NetworkMode": "none",
            "PidMode": "host",
            "ReadonlyRootfs": True,
            # Another runtime, such as gVisor's, has processes of its own and no others.
            "Runtime": "runc",
            "SecurityOpt": ["no-new-privileges"],
            "Tmpfs": {"/run": f"size={MEMORY // 4},mode=755,noexec,nosuid,nodev"},
            "UsernsMode": "host",
        },
    }
