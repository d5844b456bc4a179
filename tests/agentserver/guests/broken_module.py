"""A module whose import fails."""

raise OSError("no such device")
