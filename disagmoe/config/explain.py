"""The settings in words, for the terminal and for docs/config.md."""

import textwrap
from collections.abc import Iterator

from disagmoe.config.catalogue import Setting, Table, one_line, settings, tables
from disagmoe.config.nearest import nearest
from disagmoe.config.rules import CAUTIONS, RULES, Rule
from disagmoe.config.run import RunConfig
from disagmoe.errors import ConfigError

_WIDTH = 78
_INDENT = "    "

_INTRODUCTION = """\
<!-- Written by `disagmoe config explain --markdown` from the docstrings in disagmoe/config. -->

# Settings of a run

`disagmoe train --config FILE` reads these from a TOML file. `--set KEY=VALUE` changes one of them
for one run: the key is the dotted name as it stands below, the value is TOML, and text needs no
quotes. `disagmoe config init` writes a file to start from.

Unknown keys, illegal values and broken rules end the command with all problems listed and exit
code 2. The file `config.toml` in the run directory holds every setting with the value that the run
used.
"""


def explain(key: str | None = None) -> str:
    """Describe one setting, all settings of one table, or everything when `key` is None.

    Raises:
        ConfigError: there is no such setting or table; names the nearest.
    """
    known = settings(RunConfig)
    if key in known:
        return "\n".join(_setting_lines(known[key], rules=True)) + "\n"
    wanted = [
        table
        for table in tables(RunConfig)
        if key is None or table.name == key or table.name.startswith(f"{key}.")
    ]
    if not wanted or key == "":
        names = [table.name for table in tables(RunConfig) if table.name] + list(known)
        guess = nearest(key or "", names)
        hint = f"did you mean {guess}?" if guess else "leave KEY out to list all"
        raise ConfigError(f"{key!r} is no setting; {hint}")
    return "\n\n".join("\n".join(_table_lines(table)) for table in wanted) + "\n"


def markdown() -> str:
    """Return docs/config.md."""
    parts = [_INTRODUCTION]
    parts += ["\n".join(_markdown_table(table)) + "\n" for table in tables(RunConfig)]
    parts.append("\n".join(["## Rules between settings", "", *_bullets(RULES)]) + "\n")
    parts.append("\n".join(["## Warnings", "", *_bullets(CAUTIONS)]) + "\n")
    return "\n".join(parts)


def _table_lines(table: Table) -> Iterator[str]:
    yield f"[{table.name}]" if table.name else "(top level)"
    yield from textwrap.wrap(table.doc, _WIDTH)
    for setting in table.settings:
        yield ""
        yield from _setting_lines(setting)


def _setting_lines(setting: Setting, *, rules: bool = False) -> Iterator[str]:
    yield setting.name
    yield from _wrap(setting.doc)
    yield from _wrap(f"legal:   {setting.legal}")
    yield f"{_INDENT}default: {'none, required' if setting.required else setting.default_text}"
    if rules:
        for rule in (*RULES, *CAUTIONS):
            doc = one_line(rule.__doc__)
            if f"`{setting.name}`" in doc:
                yield from _wrap(f"{'rule:   ' if rule in RULES else 'warning:'} {doc}")


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )


def _markdown_table(table: Table) -> Iterator[str]:
    yield f"## `[{table.name}]`" if table.name else "## Top level"
    yield ""
    yield table.doc
    yield ""
    yield "| Setting | Legal values | Default | Meaning |"
    yield "|---|---|---|---|"
    for setting in table.settings:
        default = "required" if setting.required else f"`{setting.default_text}`"
        yield f"| `{setting.name}` | {setting.legal} | {default} | {setting.doc} |"


def _bullets(rules: tuple[Rule, ...]) -> list[str]:
    return [f"- {one_line(rule.__doc__)}" for rule in rules]
