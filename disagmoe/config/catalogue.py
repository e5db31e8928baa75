"""Every setting as a value: its dotted name, legal values, default and docstring."""

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic.fields import FieldInfo

from disagmoe.config.base import Section
from disagmoe.config.tomlwrite import format_value

_NOUNS: dict[object, str] = {
    int: "an integer",
    float: "a number",
    str: "text",
    bool: "true or false",
}
_PLURALS: dict[object, str] = {int: "integers", float: "numbers", str: "texts", bool: "booleans"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One field of a section; `default` means nothing when `required`."""

    name: str
    legal: str
    required: bool
    default: object
    doc: str

    @property
    def default_text(self) -> str:
        """The default as TOML, or `required`."""
        return "required" if self.required else format_value(self.default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A section: its dotted name ('' for the root), docstring and own settings."""

    name: str
    doc: str
    settings: tuple[Setting, ...]


def tables(root: type[Section], name: str = "") -> Iterator[Table]:
    """Yield `root` and all sections below it, parents first, in the order of their fields."""
    settings = []
    below: list[Table] = []
    for key, field in root.model_fields.items():
        dotted = f"{name}.{key}" if name else key
        section = section_type(field)
        if section is None:
            settings.append(_setting(dotted, field))
        else:
            below.extend(tables(section, dotted))
    yield Table(name=name, doc=one_line(root.__doc__), settings=tuple(settings))
    yield from below


def settings(root: type[Section]) -> dict[str, Setting]:
    """Return all settings below `root` by dotted name."""
    return {setting.name: setting for table in tables(root) for setting in table.settings}


def section_type(field: FieldInfo) -> type[Section] | None:
    """Return the section class of `field`, or None when the field is a plain setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Section) else None


def legal_values(field: FieldInfo) -> str:
    """Say in words which values `field` takes, for example `an integer >= 1`."""
    return _legal(field.annotation, tuple(field.metadata))


def one_line(text: str | None) -> str:
    """Join a docstring into one line."""
    return " ".join((text or "").split())


def join_words(words: list[str], last: str = "or") -> str:
    """Join `a, b or c`."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _setting(name: str, field: FieldInfo) -> Setting:
    required = field.is_required()
    return Setting(
        name=name,
        legal=legal_values(field),
        required=required,
        default=None if required else field.get_default(call_default_factory=True),
        doc=one_line(field.description),
    )


def _legal(kind: Any, limits: tuple[object, ...]) -> str:
    if get_origin(kind) is Literal:
        values = [format_value(value) for value in get_args(kind)]
        return join_words(values) if len(values) > 1 else f"{values[0]}, the only value for now"
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        least = [limit.min_length for limit in limits if isinstance(limit, MinLen)]
        return f"a list of {_PLURALS[item]}" + (f", at least {least[0]}" if least else "")
    if get_origin(kind) is dict:
        item = get_args(kind)[1]
        return f"a table of {_legal(item, ()).removeprefix('a ').replace('list', 'lists', 1)}"
    if kind is NoneType or kind not in _NOUNS:
        raise TypeError(f"no words for a setting of type {kind}; add them to {__name__}")
    bounds = [bound for limit in limits if (bound := _bound(limit))]
    return " ".join([_NOUNS[kind], join_words(bounds, "and")] if bounds else [_NOUNS[kind]])


def _bound(limit: object) -> str | None:
    match limit:
        case Ge(ge=value):
            return f">= {value}"
        case Gt(gt=value):
            return f"> {value}"
        case Le(le=value):
            return f"<= {value}"
        case Lt(lt=value):
            return f"< {value}"
        case _:
            return None
