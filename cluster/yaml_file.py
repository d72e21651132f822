"""A YAML file that people write for us: one document, no key twice, and every complaint says where."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 2**20
"""Some 8,000 tenants with a key each. YAML is slow: so much takes seconds to read."""
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
Step = str | int


class YamlFileError(ValueError):
    """One line that names the file and, where there is one, the line in it."""


@dataclass(frozen=True)
class YamlFile:
    """`value` is what the document says: mappings with text keys, lists, plain scalars; None: it is empty."""

    path: Path
    value: Any
    root: yaml.Node | None

    def fault(self, message: str, *steps: Step) -> YamlFileError:
        """A complaint about what is found by `steps` from the top, or about the nearest thing above it."""
        name = ".".join(str(step) for step in steps)
        where = f"{self.path}" if self.root is None else f"{self.path}:{_line(self.root, steps)}"
        return YamlFileError(f"{where}: {name}: {message}" if name else f"{where}: {message}")


def read_yaml(path: Path) -> YamlFile:
    """Raises `YamlFileError`, for more than `MAX_BYTES` too."""
    text = _text(path)
    try:
        loader = _Loader(text)
        root = loader.get_single_node()
        value = None if root is None else loader.construct_document(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise YamlFileError(f"{path}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = (
            "it is nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        )
        raise YamlFileError(f"{path} is no YAML: {reason}") from None
    return YamlFile(path, value, root)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            held = file.read(MAX_BYTES + 1)
        if len(held) <= MAX_BYTES:
            return held.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise YamlFileError(f"{path} cannot be read: {reason}") from None
    raise YamlFileError(f"{path} is too large: it may have {MAX_BYTES} bytes")


def _line(node: yaml.Node, steps: tuple[Step, ...]) -> int:
    """Of the deepest step that is there, counted from 1."""
    line = int(node.start_mark.line) + 1
    for step in steps:
        if isinstance(node, yaml.MappingNode):
            found = [(key, value) for key, value in node.value if key.value == step]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            found = [(node.value[step], node.value[step])]
        else:
            break
        if not found:
            break
        (key, node) = found[0]
        line = int(key.start_mark.line) + 1
    return line


class _Loader(yaml.SafeLoader):
    """Refuses keys that come twice, of which YAML would silently keep the last, and keys that are no text."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag not in (_TEXT, _MERGE):
                raise yaml.MarkedYAMLError(
                    problem="a key must be text: quote it", problem_mark=key.start_mark
                )
            if key.value in seen:
                problem = f"{key.value} is there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return node
