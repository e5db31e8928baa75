"""A run config from a TOML file and `--set` assignments, checked as a whole."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from disagmoe.config.base import Section
from disagmoe.config.catalogue import section_type
from disagmoe.config.rules import RULES, problems
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlread import Tree, apply_sets, read_toml
from disagmoe.config.wording import explain_errors
from disagmoe.errors import ConfigError


def load_run_config(path: str | Path, sets: Sequence[str] = ()) -> RunConfig:
    """Read `path`, apply `sets` in order (`train.optimizer.lr=1e-4`, TOML values) and check it all.

    Raises:
        ConfigError: with every problem at once: unknown keys with the nearest name, missing keys,
            wrong types, values out of range, and rules between settings.
    """
    return _build(read_toml(path), sets, source=str(path))


def parse_run_config(tree: Mapping[str, Any], sets: Sequence[str] = ()) -> RunConfig:
    """Build a config from nested dicts as TOML gives them; else the same as `load_run_config`."""
    return _build(copy.deepcopy(dict(tree)), sets, source=None)


def override(config: RunConfig, sets: Sequence[str]) -> RunConfig:
    """Return `config` with `sets` applied and everything checked again; raises ConfigError."""
    return _build(config.model_dump(), sets, source=None)


def _build(tree: Tree, sets: Sequence[str], *, source: str | None) -> RunConfig:
    assignments, found = apply_sets(tree, sets)
    try:
        config = RunConfig.model_validate(tree)
    except ValidationError as error:
        for name, problem in explain_errors(error, RunConfig):
            origin = next((a for key, a in assignments.items() if _touches(key, name)), None)
            found.append(f"{problem} (--set {origin})" if origin else problem)
        broken = {detail["loc"] for detail in error.errors(include_url=False)}
        found += _problems_of_the_rest(tree, broken)
        raise ConfigError(found, source=source) from None
    found += problems(config)
    if found:
        raise ConfigError(found, source=source)
    return config


def _touches(key: str, name: str) -> bool:
    """Tell whether assigning `key` wrote `name`, a table around it or a setting inside it."""
    return name == key or name.startswith((f"{key}.", f"{key}[")) or key.startswith(f"{name}.")


def _problems_of_the_rest(tree: Tree, broken: Iterable[tuple[int | str, ...]]) -> list[str]:
    """Apply each rule whose settings are all there and legal, so that one report has everything."""
    config = cast(RunConfig, _Known(RunConfig, tree, {_settings_path(path) for path in broken}))
    found: list[str] = []
    for rule in RULES:
        try:
            found += rule(config)
        except _UnknownValueError:
            continue
    return found


def _settings_path(path: tuple[int | str, ...]) -> tuple[str, ...]:
    return tuple(part for part in path if isinstance(part, str))


class _UnknownValueError(Exception):
    """A rule asked for a setting that is missing or illegal."""


class _Known:
    """The legal part of a config that is not legal as a whole; reading any other part raises."""

    def __init__(
        self,
        section: type[Section],
        tree: Tree,
        broken: set[tuple[str, ...]],
        path: tuple[str, ...] = (),
    ) -> None:
        for key, field in section.model_fields.items():
            here = (*path, key)
            below = section_type(field)
            inside = below is None and any(bad[: len(here)] == here for bad in broken)
            if here in broken or inside:
                continue
            if below is not None:
                setattr(self, key, _Known(below, tree.get(key, {}), broken, here))
            elif key in tree:
                setattr(self, key, tree[key])
            elif not field.is_required():
                setattr(self, key, field.get_default(call_default_factory=True))

    def __getattr__(self, name: str) -> object:
        raise _UnknownValueError(name)
