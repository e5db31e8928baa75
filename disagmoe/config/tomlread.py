"""TOML files and `--set a.b=c` as plain nested dicts, with errors that show the place."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from disagmoe.errors import ConfigError

Tree = dict[str, Any]

_AT = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def read_toml(path: str | Path) -> Tree:
    """Read a TOML file.

    Raises:
        ConfigError: the file cannot be read, or is not TOML; names line and column.
    """
    source = str(path)
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(
            "no such file; `disagmoe config init` writes one to start from", source=source
        ) from None
    except IsADirectoryError:
        raise ConfigError("is a directory; expected a TOML file", source=source) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"is not UTF-8 text (byte {error.start}); expected a TOML file", source=source
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", source=source) from None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_show(text, str(error)), source=source) from None


def apply_set(tree: Tree, assignment: str) -> str:
    """Write `assignment`, such as `train.optimizer.lr=1e-4`, into `tree`; return its dotted key.

    The value is TOML; text without quotes is taken as a string, so that `data.paths=["a"]` and
    `cluster.device=cpu` both work.

    Raises:
        ConfigError: the assignment cannot be read or leads through a plain setting.
    """
    source = f"--set {assignment}"
    dotted, equals, text = assignment.partition("=")
    parts = [part.strip() for part in dotted.split(".")]
    if not equals or not all(parts):
        raise ConfigError("expected KEY=VALUE, as in train.steps=10", source=source)
    value = _parse_value(text.strip(), source)
    for depth, part in enumerate(parts[:-1], start=1):
        below: object = tree.setdefault(part, {})
        if not isinstance(below, dict):
            parent = ".".join(parts[:depth])
            raise ConfigError(f"{parent} is one setting and has none below it", source=source)
        tree = below
    tree[parts[-1]] = value
    return ".".join(parts)


def apply_sets(tree: Tree, assignments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Apply all `assignments` in order, the last one of a key wins.

    Returns the assignment by dotted key, and the problems of those that could not be applied.
    """
    applied: dict[str, str] = {}
    found: list[str] = []
    for assignment in assignments:
        try:
            applied[apply_set(tree, assignment)] = assignment
        except ConfigError as error:
            found.append(str(error))
    return applied, found


def _parse_value(text: str, source: str) -> Any:
    if not text:
        raise ConfigError('no value; write "" for empty text', source=source)
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError as error:
        if text[0] in "\"'[{":
            reason = _AT.sub("", str(error))
            raise ConfigError(
                f"the value is not TOML: {reason} (the shell may have taken the quotes: put the "
                "whole assignment in single quotes)",
                source=source,
            ) from None
        return text


def _show(text: str, message: str) -> str:
    """Return tomllib's message with its place first and the guilty line below it."""
    at = _AT.search(message)
    lines = text.splitlines()
    reason = _AT.sub("", message)
    if at is None or at[1] is None:
        return f"line {max(len(lines), 1)}: {reason} at the end of the file"
    line, column = int(at[1]), int(at[2])
    if line > len(lines):
        return f"line {line}, column {column}: {reason}"
    return (
        f"line {line}, column {column}: {reason}\n    {lines[line - 1]}\n    {' ' * (column - 1)}^"
    )
