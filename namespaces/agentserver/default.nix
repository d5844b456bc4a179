{
  pkgs ? import <nixpkgs> { },
}:
import ../../nix/namespace.nix {
  inherit pkgs;
  source = ./.;
  packages = [
    (import ../../nix/program.nix {
      inherit pkgs;
      name = "agentserver-pump";
      module = "agentix.agentserver.gateway.local";
      packages = [
        ../../packages/agentix-core
        ../../packages/agentix-agentserver
      ];
    })
  ];
}
