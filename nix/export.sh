#!/bin/sh
# export.sh DIRECTORY NIX-BUILD-ARGUMENT...
# Builds an expression and copies its closure into DIRECTORY, laid out as an image
# holds it under /nix: store/<hash>-<name>/ and the relative link `entry`.
set -eu
directory="$1"
shift
entry="$(nix-build --no-out-link "$@")"
mkdir -p "$directory/store"
nix-store --query --requisites "$entry" | while read -r path; do
    cp -a "$path" "$directory/store/"
done
ln -s "store/${entry##*/}" "$directory/entry"
