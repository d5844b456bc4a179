# `runCommand name environment script`, as nixpkgs has it, on nothing but the two
# static bootstrap programs: the script runs in busybox's shell, with busybox's
# tools and patchelf on PATH and the functions of `functions.sh`.
{ cache }:
let
  bootstrap = builtins.path {
    path = cache + "/bootstrap";
    name = "bootstrap-programs";
  };
in
name: environment: script:
derivation (
  {
    inherit name script;
    system = "x86_64-linux";
    builder = "${bootstrap}/busybox";
    args = [
      "sh"
      "-euc"
      ''
        mkdir tools
        for tool in $(${bootstrap}/busybox --list); do
          ln -s ${bootstrap}/busybox tools/$tool
        done
        export PATH=$PWD/tools:${bootstrap} LC_ALL=C
        umask 022
        . ${./functions.sh}
        eval "$script"
      ''
    ];
  }
  // environment
)
