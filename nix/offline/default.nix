# A package set made of Debian packages and wheels, for machines that reach no
# binary cache. It has the names and the interface of the part of nixpkgs that
# the expressions of this repository use, so `nix-build -I nixpkgs=nix/offline`
# builds any of them. `python3 -m nix.offline.fetch` downloads what it is made of.
{
  cache ? (
    let
      chosen = builtins.getEnv "AGENTIX_OFFLINE_CACHE";
    in
    if chosen == "" then ../../.cache/offline else /. + chosen
  ),
  lockFile ? (
    let
      chosen = builtins.getEnv "AGENTIX_OFFLINE_LOCK";
    in
    if chosen == "" then ./lock.json else /. + chosen
  ),
}:
let
  lock = builtins.fromJSON (builtins.readFile lockFile);
  sources = import ./sources.nix { inherit cache lock; };
  runCommand = import ./run-command.nix { inherit cache; };
  libraries = import ./libraries.nix { inherit lock runCommand sources; };
  python = import ./python.nix {
    inherit
      lock
      libraries
      runCommand
      sources
      ;
  };
in
{
  inherit runCommand;
  python313 = python;
  pkgsStatic.busybox = import ./busybox.nix { inherit lock runCommand sources; };
}
