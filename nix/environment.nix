# The wheels that distributions of ours require, as an environment of Python;
# the distributions themselves are not in it.
{
  pkgs,
  packages,
}:
let
  inherit (builtins)
    concatMap
    filter
    fromTOML
    head
    map
    match
    readFile
    ;

  project = package: (fromTOML (readFile (package + "/pyproject.toml"))).project;
  requirementName = requirement: head (match "([A-Za-z0-9_-]+).*" requirement);
  requirements = filter (name: match "agentix-.*" name == null) (
    map requirementName (concatMap (package: (project package).dependencies) packages)
  );
in
pkgs.python313.withPackages (available: map (name: available.${name}) requirements)
