# CPython, and environments of wheels, with the interface nixpkgs' python has.
{
  lock,
  libraries,
  runCommand,
  sources,
}:
let
  inherit (builtins) elem foldl' mapAttrs;

  version = lock.python;
  standardLibrary = "lib/python${version}";
  sitePackages = "${standardLibrary}/site-packages";
  compileWith = import ../compile-python.nix;

  interpreter =
    runCommand "python3-${sources.storeName lock.debian."python${version}-minimal".version}"
      {
        sources = map sources.debian [
          "libpython${version}-minimal"
          "libpython${version}-stdlib"
          "python${version}-minimal"
        ];
        inherit (libraries) loader searchPath;
        program = "bin/python${version}";
        compile = compileWith "bin/python${version}";
        inherit standardLibrary version;
      }
      ''
        mkdir unpacked
        for source in $sources; do unpack_debian $source unpacked; done
        mkdir -p $out/bin $out/lib
        cp unpacked/usr/$program $out/bin/
        ln -s python$version $out/bin/python3
        cp -a unpacked/usr/$standardLibrary $out/lib/

        # Parts that no server needs, and modules whose libraries are not shipped.
        cd $out/$standardLibrary
        rm -rf EXTERNALLY-MANAGED config-* ensurepip idlelib pydoc_data sitecustomize.py \
          test tkinter turtle.py turtledemo
        cd lib-dynload
        rm -f _ctypes_test* _curses* _dbm* _gdbm* _test* _tkinter* _xx* readline* xx*
        cd $out

        link_program $program $loader $searchPath
        for module in $standardLibrary/lib-dynload/*.so; do
          link_library $module $searchPath
        done
        require_libraries $searchPath $program $standardLibrary/lib-dynload/*.so
        $compile $out/$standardLibrary
      '';

  # The wheels that the named ones need, themselves included.
  withRequirements =
    let
      add = seen: name: if elem name seen then seen else foldl' add (seen ++ [ name ]) lock.wheels.${name}.requires;
    in
    foldl' add [ ];

  # One directory for all wheels: fewer places to look at each import.
  environment =
    names:
    runCommand "python3-environment"
      {
        wheels = map sources.wheel (withRequirements names);
        searchPath = libraries.wheelSearchPath;
        compile = compileWith "${interpreter}/bin/python3";
        inherit interpreter sitePackages;
      }
      ''
        mkdir -p $out/$sitePackages $out/bin
        ln -s $interpreter/bin/python3 $out/bin/python3
        cd $out/$sitePackages
        for wheel in $wheels; do unzip -q $wheel; done
        chmod -R u+w,a+rX .
        for library in $(find . -type f -name '*.so'); do
          require_libraries $searchPath $library
          link_library $library $searchPath
        done
        $compile $out/$sitePackages
      '';
in
interpreter
// {
  pythonVersion = version;
  interpreter = "${interpreter}/bin/python3";
  inherit sitePackages;
  withPackages = select: environment (select (mapAttrs (name: _: name) lock.wheels));
}
