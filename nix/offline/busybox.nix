# Debian's static busybox. It runs its own tools without a link to each, which
# nixpkgs' has to be asked for: `override` accepts that request.
{ lock, runCommand, sources }:
let
  busybox =
    runCommand "busybox-${sources.storeName lock.debian.busybox-static.version}"
      { source = sources.debian "busybox-static"; }
      ''
        mkdir unpacked
        unpack_debian $source unpacked
        mkdir -p $out/bin
        cp unpacked/usr/bin/busybox $out/bin/busybox
      '';
in
busybox // { override = _: busybox; }
