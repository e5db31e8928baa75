"""A config as TOML text, each setting below its docstring; loading the text gives the config."""

import json
import textwrap
from collections.abc import Iterator

from disagmoe.config.base import Section

_WIDTH = 96


def dump_toml(config: Section, *, unset_as_comments: bool = False) -> str:
    """Return `config` as TOML, with every setting and its docstring.

    With `unset_as_comments`, settings that were left at their defaults when `config` was made
    appear as `# key = default`, so that the text shows what can be changed.
    """
    return "\n".join(_lines(config, "", unset_as_comments)).strip() + "\n"


def format_value(value: object) -> str:
    """Return one TOML value; raises TypeError for what a setting cannot hold."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are legal TOML, but TOML also wants DEL escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return "[" + ", ".join(format_value(item) for item in value) + "]"
    if isinstance(value, dict):
        pairs = (f"{format_value(key)} = {format_value(item)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    raise TypeError(f"{value!r} has no TOML form here")


def _lines(section: Section, name: str, unset_as_comments: bool) -> Iterator[str]:
    yield ""
    yield from _comment(type(section).__doc__)
    if name:
        yield f"[{name}]"
    below: list[tuple[str, Section]] = []
    for key, field in type(section).model_fields.items():
        value = getattr(section, key)
        if isinstance(value, Section):
            below.append((f"{name}.{key}" if name else key, value))
            continue
        yield ""
        yield from _comment(field.description)
        unset = unset_as_comments and key not in section.model_fields_set
        yield f"{'# ' if unset else ''}{key} = {format_value(value)}"
    for dotted, child in below:
        yield from _lines(child, dotted, unset_as_comments)


def _comment(doc: str | None) -> list[str]:
    return textwrap.wrap(
        " ".join((doc or "").split()),
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
