"""Build a namespace: an image, an archive or a bundle of it, the same for the same source.

Build ──► project     the source tree and its wheels
     ├──► builders    the closure: by this library, by Nix, or by Docker with Nix inside
     ├──► record      the lock and the bill of materials
     └──► BuildResult ──► archive ──► Docker, or a registry
                     └──► a bundle
"""

import argparse
import asyncio
from pathlib import Path

__all__ = ["HELP", "add_arguments", "run"]

HELP = "build an image, an archive or a bundle"

COMPRESSED = {".bz2", ".gz", ".tgz", ".txz", ".xz", ".zip", ".zst"}
"""What the names of files end in that are no archives for `docker load`, and no directories."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `agentix-namespace build`."""
    parser.add_argument("path", type=Path, metavar="PATH", help="the directory of the namespace")
    parser.add_argument(
        "--builder",
        choices=("auto", "plain", "nix", "docker"),
        default="auto",
        help="local Nix, Docker with Nix inside, or neither; by default what the namespace needs"
        " and the machine has",
    )
    parser.add_argument(
        "--tag", help="the image's reference; by default __image__, or agentix/<name>:<version>"
    )
    parser.add_argument(
        "--platform", default=None, help="such as linux/arm64; by default this machine's"
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR|TAR",
        help="write a bundle below a directory, or an archive for docker load, instead of loading"
        " the image into Docker",
    )
    parser.add_argument("--push", action="store_true", help="push the image to its registry")
    parser.add_argument(
        "--nix-image", metavar="IMAGE", help="what the docker builder builds in; it has Nix"
    )
    parser.add_argument(
        "--cache", type=Path, metavar="DIRECTORY", help="by default ~/.cache/agentix"
    )


def run(options: argparse.Namespace) -> int:
    """Build what was asked for, and print what became of it, one line each.

    Raises:
        UsageError: The namespace, the reference or the platform cannot be built.
        BuildError: A builder, an engine or a registry failed.
    """
    from agentix.errors import UsageError
    from agentix.namespace_sdk.build.builders import NIX_IMAGE
    from agentix.namespace_sdk.build.pipeline import Build, Progress, default_cache
    from agentix.namespace_sdk.build.programs import choose_platform
    from agentix.namespace_sdk.build.project import Project

    build = Build(
        Project.read(options.path, options.tag),
        builder=None if options.builder == "auto" else options.builder,
        platform=choose_platform(options.platform),
        cache=(options.cache or default_cache()).absolute(),
        nix_image=options.nix_image or NIX_IMAGE,
        progress=Progress(),
    )
    output = options.output
    if output is not None and output.suffix in COMPRESSED:
        raise UsageError(f"{output}: archives are not compressed: give a name that ends in .tar")
    with build.run() as built:
        match output:
            case None if not options.push:
                print(built.tag, built.load())
            case Path() if output.suffix == ".tar":
                print(built.tag, built.save(output), output)
            case Path():
                print(built.tag, built.lay_out(output))
        if options.push:
            print(built.tag, asyncio.run(built.push()))
    return 0
