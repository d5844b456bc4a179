# A namespace, as the protocol lays it out, from its source directory:
#
#   manifest.json
#   python/agentix_namespaces/<name>/
#   bin/                     programs, where the namespace has any
#
# Programs are the scripts in the source's `bin`, whose `#!/bin/sh` and
# `#!/usr/bin/env python3` become programs of the closure, and the `bin` of each
# of `packages`. Task images need to have none of them.
{
  pkgs ? import <nixpkgs> { },
  source,
  packages ? [ ],
}:
let
  manifest = builtins.fromJSON (builtins.readFile (source + "/manifest.json"));
  python = pkgs.python313;
in
pkgs.runCommand "agentix-namespace-${manifest.name}"
  {
    source = import ./source.nix source;
    shell = import ./static-shell.nix { inherit pkgs; };
    inherit packages;
    inherit (python) interpreter;
    compile = import ./compile-python.nix python.interpreter;
  }
  ''
    mkdir -p $out/python
    cp -R $source/agentix_namespaces $out/python/
    cp $source/manifest.json $out/manifest.json
    chmod -R u+w $out
    $compile $out/python

    if [ -d $source/bin ] || [ -n "$packages" ]; then
      mkdir $out/bin
    fi
    for program in $source/bin/*; do
      [ -f $program ] || continue
      sed -e "1s|^#!/bin/sh|#!$shell/bin/sh|" \
        -e "1s|^#!/usr/bin/env python3|#!$interpreter -I|" \
        $program >$out/bin/''${program##*/}
      chmod 755 $out/bin/''${program##*/}
    done
    for package in $packages; do
      ln -s $package/bin/* $out/bin/
    done
  ''
