"""The impls of the stand-in agent."""

from collections.abc import AsyncIterator

from . import RunResult, Token


def run(instruction: str, workdir: str = "/testbed") -> RunResult:
    """Gives a patch that adds the instruction to a file in the working directory."""
    lines = instruction.splitlines() or [""]
    hunk = "".join(f"+{line}\n" for line in lines)
    path = f"{workdir.rstrip('/')}/ANSWER"
    patch = f"--- /dev/null\n+++ {path}\n@@ -0,0 +1,{len(lines)} @@\n{hunk}"
    return RunResult(exit_code=0, patch=patch)


async def chat(prompt: str) -> AsyncIterator[Token]:
    """Gives the words of the prompt, with the space that goes before each."""
    for index, word in enumerate(prompt.split()):
        yield Token(text=word if index == 0 else f" {word}")
