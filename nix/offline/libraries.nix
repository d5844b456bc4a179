# One store path for each shared library's Debian package.
{
  lock,
  runCommand,
  sources,
}:
let
  inherit (builtins)
    attrNames
    attrValues
    concatStringsSep
    filter
    listToAttrs
    map
    match
    removeAttrs
    ;

  isLibrary = name: match "libpython.*" name == null && match "lib.*|zlib1g" name != null;
  names = filter isLibrary (attrNames lock.debian);

  searchPath = packages: concatStringsSep ":" (map (package: "${package}/lib") packages);

  # Debian's libc6 and libgcc-s1 need each other; here the C library comes first.
  requirements =
    name: if name == "libc6" then [ ] else map (required: packages.${required}) lock.debian.${name}.requires;

  unpack = ''
    mkdir unpacked
    unpack_debian $source unpacked
    mkdir -p $out/lib
    cp -a unpacked/usr/lib/x86_64-linux-gnu/*.so* $out/lib/
  '';

  library =
    name:
    runCommand "${name}-${sources.storeName lock.debian.${name}.version}" {
      source = sources.debian name;
      requirements = searchPath (requirements name);
    } (unpack + (if name == "libc6" then blindLoader else link));

  link = ''
    for file in $out/lib/*; do
      [ -L $file ] || link_library $file $out/lib:$requirements
    done
    require_libraries $out/lib:$requirements $(find $out/lib -type f)
  '';

  # The loader must not look at the task image's libraries: its cache, its preload
  # list and the default directories become names that no image has. The C library's
  # own files are linked already, and patchelf must not touch them.
  blindLoader = ''
    cd $out/lib
    rm -f libmemusage.so libpcprofile.so libc_malloc_debug.so* libnsl.so* \
      libnss_compat.so* libnss_hesiod.so* libthread_db.so* libBrokenLocale.so*
    loader=$(readlink -f ld-linux-x86-64.so.2)
    cd - >/dev/null
    chmod u+w $loader
    replace_bytes $loader /etc/ld.so.cache /nix/ld.so.cache
    replace_bytes $loader /etc/ld.so.preload /nix/ld.so.preload
    replace_bytes $loader '/lib/x86_64-linux-gnu/\0' '/nix/x86_64-linux-gnu/\0'
    replace_bytes $loader '\0/lib/\0/usr/lib/\0' '\0/nix/\0/usr/nix/\0'
    chmod 555 $loader
  '';

  packages = listToAttrs (
    map (name: {
      inherit name;
      value = library name;
    }) names
  );
in
{
  loader = "${packages.libc6}/lib/ld-linux-x86-64.so.2";
  # What the interpreter and its own modules need, which every runtime ships.
  searchPath = searchPath (attrValues (removeAttrs packages [ "libstdc++6" ]));
  # What wheels may need on top of it.
  wheelSearchPath = searchPath (attrValues packages);
}
