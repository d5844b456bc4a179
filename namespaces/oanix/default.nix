{
  pkgs ? import <nixpkgs> { },
}:
import ../../nix/namespace.nix {
  inherit pkgs;
  source = ./.;
  packages = [
    (import ../../nix/program.nix {
      inherit pkgs;
      name = "agentix-oanix";
      module = "agentix.oanix.command";
      packages = [
        ../../packages/agentix-core
        ../../packages/agentix-oanix
      ];
    })
  ];
}
