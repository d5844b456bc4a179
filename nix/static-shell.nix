# A static shell: `bin/sh`, which is all of busybox. Sandboxes never depend on
# the task image for a shell, and mkdir and ln run without links of their own.
{ pkgs }:
pkgs.runCommand "static-shell"
  {
    busybox = pkgs.pkgsStatic.busybox.override {
      extraConfig = ''
        CONFIG_FEATURE_PREFER_APPLETS y
        CONFIG_FEATURE_SH_STANDALONE y
      '';
    };
  }
  ''
    mkdir -p $out/bin
    cp $busybox/bin/busybox $out/bin/sh
  ''
