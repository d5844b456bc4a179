{
  pkgs ? import <nixpkgs> { },
}:
import ../../nix/namespace.nix {
  inherit pkgs;
  source = ./.;
}
