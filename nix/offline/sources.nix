# The locked files, taken from the cache into the store. The hash is the one in
# the lock, so a file that differs does not evaluate.
{ cache, lock }:
let
  locked =
    folder: entry:
    builtins.path {
      path = cache + "/${folder}/${entry.file}";
      name = storeName entry.file;
      inherit (entry) sha256;
      recursive = false;
    };
  # Debian's versions hold characters that store names may not.
  storeName = builtins.replaceStrings [ "%3a" ":" "~" ] [ "-" "-" "-" ];
in
{
  inherit storeName;
  debian = name: locked "debian" lock.debian.${name};
  wheel = name: locked "wheels" lock.wheels.${name};
}
