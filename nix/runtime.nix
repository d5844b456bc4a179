# The runtime: one Python process that serves a sandbox, and the shell that
# starts it.
#
#   bin/start           serves, as AGENTIX_* in the environment says
#   bin/sh              a static shell, for task images that have none
#   lib/.../agentix     our own packages, merged into one import package
{
  pkgs ? import <nixpkgs> { },
}:
let
  packages = [
    ../packages/agentix-core
    ../packages/agentix-linux
    ../packages/agentix-runtime
  ];
  python = pkgs.python313;
in
pkgs.runCommand "agentix-runtime"
  {
    sources = map (package: import ./source.nix (package + "/src")) packages;
    shell = import ./static-shell.nix { inherit pkgs; };
    environment = import ./environment.nix { inherit pkgs packages; };
    inherit (python) interpreter sitePackages;
    compile = import ./compile-python.nix python.interpreter;
    standardLibrary = "${python}/lib/python${python.pythonVersion}";
  }
  ''
    mkdir -p $out/bin $out/$sitePackages
    cp $shell/bin/sh $out/bin/sh

    for source in $sources; do
      cp -R $source/. $out/$sitePackages/
      chmod -R u+w $out/$sitePackages
    done
    $compile $out/$sitePackages

    # No `site`, nothing of the task image's environment, and every directory of
    # the search path named: start-up looks nowhere else. Nor does it look for
    # garbage, of which importing makes little; the runtime does later.
    #
    # What would have the loader, the C library or OpenSSL run code of the task
    # image (ld.so(8), iconv_open(3), openssl-env(7)) is put aside for commands.
    cat >$out/bin/start <<END
    #!$out/bin/sh
    unset LD_AUDIT LD_DEBUG LD_DEBUG_OUTPUT LD_LIBRARY_PATH LD_PRELOAD LD_PROFILE
    for name in GCONV_PATH OPENSSL_CONF OPENSSL_ENGINES OPENSSL_MODULES; do
      eval "value=\\\''${\$name-}"
      if [ -n "\$value" ]; then export "AGENTIX_TASK_\$name=\$value"; fi
      unset "\$name"
    done
    exec $interpreter -I -S -X utf8 -c '
    import gc, sys
    gc.disable()
    sys.path[:] = [
        "$standardLibrary",
        "$standardLibrary/lib-dynload",
        "$environment/$sitePackages",
        "$out/$sitePackages",
    ]
    from agentix.runtime.__main__ import main
    main()
    ' "\$@"
    END
    chmod 755 $out/bin/start
  ''
