"""Commands: `/exec "echo hi"` beside a bare spawn plus a bare echo, and beside SWE-ReX."""

from agentix import RuntimeClient
from bench.calls import bare_echo, bare_session
from bench.cores import on_client_core
from bench.peer import ABSENT, is_installed, peer
from bench.rounds import Run, in_flight, percentile, sequential, take_turns
from bench.rows import Row, Skipped, at_most, compared, measured
from bench.servers import TOKEN, Server, floor, runtime

__all__ = ["measure"]

ROUNDS = 5
COMMANDS = 150
WIDTH = 32


async def measure() -> list[Row | Skipped]:
    """Measures short commands."""
    with on_client_core(), floor() as bare, runtime() as server:
        async with RuntimeClient(server.url, token=TOKEN) as client:

            async def run() -> None:
                assert (await client.run("echo hi")).stdout == "hi\n"

            return [
                *await _beside_floor(run, bare, server),
                *await _beside_peer(run, server),
            ]


async def _beside_floor(run: Run[None], bare: Server, server: Server) -> list[Row]:
    async with bare_session() as session, bare_echo(bare.url) as echo:

        async def spawn() -> float:
            async with session.post(f"{bare.url}/spawn") as response:
                return float(await response.json())

        async def floor_of_exec() -> float:
            spawns = [await spawn() for _ in range(COMMANDS)]
            echoes = await sequential(echo, COMMANDS, bare.pid)
            return percentile(spawns, 50) * 1e6 + echoes.p50

        floors, samples, crowds = await take_turns(
            ROUNDS,
            floor_of_exec,
            lambda: sequential(run, COMMANDS, server.pid),
            lambda: in_flight(run, 2 * COMMANDS, server.pid, width=WIDTH),
        )
    p50s = [sample.p50 for sample in samples]
    return [
        compared(
            "exec, p50; floor: a bare spawn and echo", "us", p50s, floors, at_most(1.5, "ratio")
        ),
        measured("exec, client CPU", "us", [sample.client for sample in samples]),
        measured("exec, server CPU, its children apart", "us", [s.server for s in samples]),
        measured(f"exec, {WIDTH} in flight, a second", "/s", [1e6 / s.wall for s in crowds]),
    ]


async def _beside_peer(run: Run[None], server: Server) -> list[Row | Skipped]:
    name = "exec, p50; floor: SWE-ReX"
    if not is_installed():
        return [Skipped(name, ABSENT)]
    with peer() as other:
        await other.ready()

        async def their_run() -> None:
            assert await other.run("echo hi") == "hi\n"

        theirs, ours, their_crowds, our_crowds = await take_turns(
            ROUNDS,
            lambda: sequential(their_run, COMMANDS, other.pid),
            lambda: sequential(run, COMMANDS, server.pid),
            lambda: in_flight(their_run, 2 * COMMANDS, other.pid, width=WIDTH),
            lambda: in_flight(run, 2 * COMMANDS, server.pid, width=WIDTH),
        )
    ahead = at_most(1, "ratio")
    return [
        compared(name, "us", [s.p50 for s in ours], [s.p50 for s in theirs], ahead),
        compared(
            f"exec, {WIDTH} in flight, time a command; floor: SWE-ReX",
            "us",
            [s.wall for s in our_crowds],
            [s.wall for s in their_crowds],
            ahead,
        ),
    ]
