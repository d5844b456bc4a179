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
    compile = import ./compile-python.nix python.interpreter;
  }
  ''
    mkdir -p $out/python
    cp -R $modules $out/python/agentix_namespaces
    cp $manifest $out/manifest.json
    chmod -R u+w $out
    $compile $out/python

    if [ -n "$programs$packages" ]; then
      mkdir $out/bin
    fi
    for program in ''${programs:+$programs/*}; do
      sed -e "1s|^#!/bin/sh|#!$shell/bin/sh|" \
        -e "1s|^#!/usr/bin/env python3|#!$interpreter -I|" \
        $program >$out/bin/''${program##*/}
      chmod 755 $out/bin/''${program##*/}
    done
    for package in $packages; do
      ln -sf $package/bin/* $out/bin/
    done
  ''
