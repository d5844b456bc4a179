"""YAML files: plain data, in which no key is given twice."""

from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError

__all__ = ["read_yaml"]


class _Loader(yaml.SafeLoader):
    """Refuses a mapping that says two things about one key, where YAML takes the last."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                problem = f"the key {key.value!r} is given twice"
                raise ComposerError(None, None, problem, key.start_mark)
            seen.add(key.value)
        return node


def read_yaml(path: Path) -> object:
    """Reads the one document of a file.

    Raises:
        OSError: The file can not be read.
        UnicodeDecodeError: It is not UTF-8.
        yaml.YAMLError: It is not YAML, gives a key twice, or asks for more than plain data.
    """
    loader = _Loader(path.read_text(encoding="utf-8"))
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
