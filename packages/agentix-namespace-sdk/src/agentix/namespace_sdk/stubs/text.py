"""How values and docstrings are written in Python."""

import json

__all__ = ["docstring", "literal"]


def literal(value: object) -> str:
    """Writes a plain value: a text in double quotes, as formatters have it."""
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def docstring(text: str, indent: str) -> str:
    """Writes a docstring."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    if escaped.endswith('"'):
        escaped = f'{escaped[:-1]}\\"'
    lines = escaped.splitlines() or [""]
    if len(lines) == 1:
        return f'{indent}"""{lines[0]}"""'
    told = [lines[0], *(f"{indent}{line}" if line else "" for line in lines[1:])]
    return "\n".join([f'{indent}"""{told[0]}', *told[1:], f'{indent}"""'])
