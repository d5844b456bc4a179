"""Helpers for the tests of a namespace: a runtime in their own process, and a check of stubs.

The pytest plugin of this distribution offers the runtime as the fixture `mounted`.
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from agentix.dispatch import Dispatcher
from agentix.errors import StubError
from agentix.manifest import read_manifest

__all__ = ["assert_stub_matches_impl", "mounted_runtime"]

START_TIMEOUT = 30.0
"""Seconds within which the runtime must accept calls on a busy machine."""


def assert_stub_matches_impl(stub: Callable[..., Any], impl: Callable[..., Any]) -> None:
    """Raise where an impl does not match its stub.

    The rule is that of `Dispatcher.bind`: the same parameters in name, kind, order and default,
    an asynchronous generator where the stub streams and none where it does not, and annotations
    that have a JSON form.

    ```python
    from agentix.namespace_sdk import assert_stub_matches_impl
    from agentix_namespaces import mock_dataset
    from agentix_namespaces.mock_dataset import _impl

    assert_stub_matches_impl(mock_dataset.tasks, _impl.tasks)
    ```

    Args:
        stub: A function of the namespace's package.
        impl: What its `register()` binds to the stub.

    Raises:
        AssertionError: They do not match; the message names the function and the parameter.
    """
    try:
        Dispatcher().bind(stub, impl)
    except StubError as error:
        raise AssertionError(str(error)) from error


@contextmanager
def mounted_runtime(*sources: Path) -> Iterator[str]:
    """Serve source trees of namespaces by a real runtime in a thread of this process.

    Calls cross a real socket, and impls run in this process: a debugger, coverage and
    monkeypatching reach them.

    ```python
    import asyncio
    from pathlib import Path

    from agentix import RuntimeClient
    from agentix.namespace_sdk import mounted_runtime
    from agentix_namespaces import mock_dataset


    async def main() -> None:
        with mounted_runtime(Path("namespaces/mock-dataset")) as url:
            async with RuntimeClient(url) as client:
                print(await client.remote(mock_dataset.tasks))


    asyncio.run(main())
    ```

    Args:
        sources: Directories with `manifest.json` and `agentix_namespaces/<name>/`.

    Yields:
        The URL to give to a `RuntimeClient`.

    Raises:
        ManifestError: A source tree has no valid manifest.
    """
    path = list(sys.path)
    with tempfile.TemporaryDirectory(prefix="agentix-") as directory:
        root = Path(directory)
        for number, source in enumerate(sources):
            _mount(source.absolute(), root / "mnt" / f"c{number}" / "entry")
        thread = RuntimeThread(root)
        try:
            yield thread.start()
        finally:
            thread.stop()
            sys.path[:] = path


def _mount(source: Path, entry: Path) -> None:
    """Make a mount of links to a source tree, so that its modules keep their own paths."""
    read_manifest(source / "manifest.json")
    entry.mkdir(parents=True)
    (entry / "manifest.json").symlink_to(source / "manifest.json")
    (entry / "python").symlink_to(source)
    if (source / "bin").is_dir():
        (entry / "bin").symlink_to(source / "bin")


class RuntimeThread:
    """A runtime on an event loop of its own, which no test's loop can disturb.

    Args:
        root: The directory of its mounts, its workspace and its socket.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._ready: Future[str] = Future()
        self._stop: Callable[[], Any] = lambda: None
        self._thread = threading.Thread(target=self._run, name="agentix-runtime", daemon=True)

    def start(self) -> str:
        """Start to serve, and return the URL once calls are accepted."""
        self._thread.start()
        return self._ready.result(START_TIMEOUT)

    def stop(self) -> None:
        """End the calls under way, and return once the thread has ended."""
        with suppress(RuntimeError):  # where the runtime ended by itself, its loop is closed
            self._stop()
        self._thread.join(START_TIMEOUT)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)  # which start() raises

    async def _serve(self) -> None:
        # Importing the runtime takes a while, and the plugin is imported by every test run.
        from agentix.runtime.app import create_app
        from agentix.runtime.listener import listen, url_of
        from agentix.runtime.server import serve_until
        from agentix.runtime.settings import Settings

        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        self._stop = lambda: loop.call_soon_threadsafe(stop.set)
        settings = Settings(
            bind_unix=self._root / "socket",
            mount_root=self._root / "mnt",
            upload_root=self._root / "workspace",
        )
        app = create_app(settings, on_ready=lambda: self._ready.set_result(url))
        listener = listen(settings)
        url = url_of(listener)
        await serve_until(stop, app, listener)
