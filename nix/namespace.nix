# A namespace, as the protocol lays it out, from its source directory:
#
#   manifest.json
#   python/agentix_namespaces/<name>/
#   bin/                     programs, where the namespace has any
#
# Programs are the scripts in the source's `bin`, whose `#!/bin/sh` and
# `#!/usr/bin/env python3` become programs of the closure, and the `bin` of each
# of `packages`, which takes the place of a script of the same name. Task images need
# to have none of them.
{
  pkgs ? import <nixpkgs> { },
  source,
  packages ? [ ],
}:
let
  # Only these, so that the image does not change with a README.
  manifestFile = source + "/manifest.json";
  modules = source + "/agentix_namespaces";
  programs = source + "/bin";

  manifest = builtins.fromJSON (builtins.readFile manifestFile);
  python = pkgs.python313;
in
pkgs.runCommand "agentix-namespace-${manifest.name}"
  {
    modules = import ./source.nix modules;
    programs = if builtins.pathExists programs then import ./source.nix programs else "";
    manifest = builtins.path { path = manifestFile; };
    shell = import ./static-shell.nix { inherit pkgs; };
    inherit packages;
    inherit (python) interpreter;
    # The layout is the same, whoever builds.
    layout = ../packages/agentix-core/src/agentix/layout.py;
    compile = import ./compile-python.nix python.interpreter;
  }
  ''
    mkdir namespace
    ln -s $modules namespace/agentix_namespaces
    ln -s $manifest namespace/manifest.json
    if [ -n "$programs" ]; then
      ln -s $programs namespace/bin
    fi
    $interpreter -I -S -B -X utf8 $layout namespace $out \
      "/bin/sh=$shell/bin/sh" "/usr/bin/env python3=$interpreter -I"
    $compile $out/python

    if [ -n "$packages" ]; then
      mkdir -p $out/bin
    fi
    for package in $packages; do
      ln -sf $package/bin/* $out/bin/
    done
  ''
