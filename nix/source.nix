# A source tree in the store without what running and testing leave in it, so
# that a build depends on the source alone.
path:
builtins.path {
  inherit path;
  name = "source";
  filter =
    file: type:
    let
      name = baseNameOf file;
    in
    type != "unknown" && name != "__pycache__" && builtins.match "\\..*|.*\\.pyc" name == null;
}
