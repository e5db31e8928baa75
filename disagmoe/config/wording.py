"""What pydantic found wrong, in words that name the setting, its value and the legal values."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from disagmoe.config.base import Section
from disagmoe.config.catalogue import Setting, Table, join_words, settings, tables
from disagmoe.config.nearest import nearest
from disagmoe.config.tomlwrite import format_value

Location = tuple[int | str, ...]

_SHOWN = 60  # characters of a value that a message repeats


def explain_errors(error: ValidationError, root: type[Section]) -> Iterator[tuple[str, str]]:
    """Yield (dotted key, problem) for everything in `error`; several for a missing section."""
    known = settings(root)
    sections = {table.name: table for table in tables(root)}
    details = error.errors(include_url=False, include_context=False)
    # Unknown keys first: a misspelt key also leaves its setting missing.
    for detail in sorted(details, key=lambda detail: detail["type"] != "extra_forbidden"):
        yield from _explain(detail, known, sections)


def describe_unknown(name: str, value: object, names: Mapping[str, object]) -> str:
    """Say that `name` does not exist and which of `names` is meant, or what exists beside it."""
    what = "table" if isinstance(value, dict) else "setting"
    shown = f"[{name}]" if isinstance(value, dict) else name
    guess = nearest(name, [other for other in names if other])
    if guess:
        return f"{shown} is no {what}; did you mean {f'[{guess}]' if what == 'table' else guess}?"
    parent = name.rpartition(".")[0]
    beside = [other for other in names if other.rpartition(".")[0] == parent and other]
    where = f" of [{parent}]" if parent else ""
    if len(beside) > 1:
        return f"{shown} is no {what}; the {what}s{where} are {join_words(beside, 'and')}"
    return f"{shown} is no {what}; `disagmoe config explain` lists all"


def _explain(
    detail: ErrorDetails, known: Mapping[str, Setting], sections: Mapping[str, Table]
) -> Iterator[tuple[str, str]]:
    name, value = _dotted(detail["loc"]), detail["input"]
    match detail["type"]:
        case "missing":
            below = [s for s in known.values() if s.required and _within(s.name, name)]
            for setting in below:
                yield setting.name, f"{setting.name} is missing; expected {setting.legal}"
        case "extra_forbidden":
            yield from _unknown(name, value, known, sections)
        case _ if name in sections:
            yield name, f"{name} = {_show(value)} is {_kind(value)}; expected a table [{name}]"
        case _:
            yield name, _illegal(detail["type"], name, value, known)


def _unknown(
    name: str, value: object, known: Mapping[str, Setting], sections: Mapping[str, Table]
) -> Iterator[tuple[str, str]]:
    """Name the table that is meant; where none is near, each setting inside it."""
    if not isinstance(value, dict):
        yield name, describe_unknown(name, value, known)
    elif nearest(name, [other for other in sections if other]) or not value:
        yield name, describe_unknown(name, value, sections)
    else:
        for key, inner in value.items():
            yield from _unknown(f"{name}.{key}", inner, known, sections)


def _illegal(kind: str, name: str, value: object, known: Mapping[str, Setting]) -> str:
    whole, _, index = name.partition("[")
    legal = _item(_legal_at(whole, known)) if index else _legal_at(whole, known)
    shown = f"{name} = {_show(value)}"
    if kind.endswith("_type"):
        return f"{shown} is {_kind(value)}; expected {legal}{_advice(kind, value)}"
    if kind == "finite_number":
        return f"{shown}; expected {legal}, and finite"
    return f"{shown}; expected {legal}"


def _legal_at(name: str, known: Mapping[str, Setting]) -> str:
    """What `name` takes: a setting, or an entry of one that is a table of lists."""
    if name in known:
        return known[name].legal
    table = next(setting for setting in known.values() if _within(name, setting.name))
    return table.legal.replace("a table of lists", "a list", 1)


def _item(legal: str) -> str:
    """Turn `a list of numbers, at least 1` into `a number`."""
    noun = legal.removeprefix("a list of ").partition(",")[0].removesuffix("s")
    return "text" if noun == "text" else f"a {noun}"


def _advice(kind: str, value: object) -> str:
    """Say how to write `value` so that it has the type whose absence pydantic calls `kind`."""
    match kind, value:
        case "int_type" | "float_type", str() if _reads_as_number(value, kind):
            return ": write it without quotes"
        case "bool_type", "true" | "false":
            return ": write it without quotes"
        case "int_type", float() if value.is_integer():
            return f": write {int(value)}"
        case "list_type", str():
            return f": put it in brackets, [{_show(value)}]"
        case "string_type", int() | float() | datetime.date():
            return f': put it in quotes, "{_show(value)}"'
        case _:
            return ""


def _reads_as_number(text: str, kind: str) -> bool:
    try:
        number = float(text)
    except ValueError:
        return False
    return kind == "float_type" or number.is_integer()


def _kind(value: object) -> str:
    match value:
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a decimal number"
        case str():
            return "text"
        case list():
            return "a list"
        case dict():
            return "a table"
        case _:
            return "a date or time"


def _show(value: Any) -> str:
    text = value.isoformat() if hasattr(value, "isoformat") else format_value(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _dotted(location: Location) -> str:
    name = ""
    for part in location:
        name += f"[{part}]" if isinstance(part, int) else f".{part}" if name else part
    return name


def _within(name: str, parent: str) -> bool:
    return name == parent or name.startswith(f"{parent}.")
