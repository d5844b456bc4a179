# A program of ours in Python, with the wheels that it needs, for the `packages`
# of a namespace:
#
#   bin/<name>          calls `main` of a module and exits with what that gives
#   lib/.../agentix     our own packages, merged into one import package
{
  pkgs ? import <nixpkgs> { },
  name,
  # The module that has `main`.
  module,
  # Directories of our distributions, siblings that they require included.
  packages,
}:
let
  python = pkgs.python313;
in
pkgs.runCommand name
  {
    inherit name module;
    sources = map (package: import ./source.nix (package + "/src")) packages;
    shell = import ./static-shell.nix { inherit pkgs; };
    environment = import ./environment.nix { inherit pkgs packages; };
    inherit (python) interpreter sitePackages;
    compile = import ./compile-python.nix python.interpreter;
    standardLibrary = "${python}/lib/python${python.pythonVersion}";
  }
  ''
    mkdir -p $out/bin $out/$sitePackages
    for source in $sources; do
      cp -R $source/. $out/$sitePackages/
      chmod -R u+w $out/$sitePackages
    done
    $compile $out/$sitePackages

    # Nothing of the task image's environment reaches the interpreter.
    cat >$out/bin/$name <<END
    #!$shell/bin/sh
    unset LD_PRELOAD LD_LIBRARY_PATH
    exec $interpreter -I -S -X utf8 -c '
    import sys
    sys.path[:] = [
        "$standardLibrary",
        "$standardLibrary/lib-dynload",
        "$environment/$sitePackages",
        "$out/$sitePackages",
    ]
    from $module import main
    sys.exit(main())
    ' "\$@"
    END
    chmod 755 $out/bin/$name
  ''
