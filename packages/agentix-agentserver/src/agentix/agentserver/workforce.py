"""The workforce: what runs the handlers of an organism, as its file says."""

from pathlib import Path

from agentix.agentserver.private import private_paths
from agentix.agentserver.spec import OrganismSpec
from agentix.agentserver.worker.inprocess import InProcess
from agentix.agentserver.worker.pool import Workers
from agentix.agentserver.worker.settings import Isolation, WorkerSettings

__all__ = ["make_workforce"]


def make_workforce(spec: OrganismSpec, directory: Path) -> Workers | InProcess:
    """Makes what runs the handlers of an organism, not yet started.

    Args:
        spec: What the organism is made of.
        directory: What relative paths in it are relative to.
    """
    settings = settings_of(spec, directory)
    return InProcess(settings) if settings.isolation is Isolation.INPROCESS else Workers(settings)


def settings_of(spec: OrganismSpec, directory: Path) -> WorkerSettings:
    """Gives what workers may do."""
    workers = spec.workers
    return WorkerSettings(
        isolation=Isolation(spec.isolation),
        preload=spec.preload,
        path=tuple(str(directory / path) for path in spec.import_paths),
        hidden=private_paths(spec, directory),
        readable=tuple(str(directory / path) for path in workers.readable),
        output=spec.limits.message_bytes,
        workers=workers.live,
        spares=workers.spares,
        idle=workers.idle_seconds,
        memory=workers.memory_bytes,
        cpu=workers.cpu_seconds,
        processes=workers.processes,
        open_files=workers.open_files,
        file_size=workers.file_bytes,
    )
