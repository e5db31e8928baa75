"""A dumped config loads back equal, whatever its values."""

import tomllib
from typing import Any, Literal, get_args, get_origin

import pytest
from annotated_types import Ge, Gt, Le, Lt, MinLen
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from disagmoe.config.base import Section
from disagmoe.config.catalogue import section_type
from disagmoe.config.data import DataConfig
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlwrite import dump_toml, format_value


def values_of(kind: Any, limits: list[object]) -> st.SearchStrategy[Any]:
    if get_origin(kind) is Literal:
        return st.sampled_from(get_args(kind))
    if get_origin(kind) is list:
        least = next((limit.min_length for limit in limits if isinstance(limit, MinLen)), 0)
        return st.lists(values_of(get_args(kind)[0], []), min_size=least, max_size=4)
    low = next((limit for limit in limits if isinstance(limit, Ge | Gt)), None)
    high = next((limit for limit in limits if isinstance(limit, Le | Lt)), None)
    if kind is int:
        assert high is None
        assert isinstance(low, Ge)
        return st.integers(min_value=low.ge)
    if kind is float:
        return st.floats(
            min_value=low.ge if isinstance(low, Ge) else low and low.gt,
            max_value=high.le if isinstance(high, Le) else high and high.lt,
            exclude_min=isinstance(low, Gt),
            exclude_max=isinstance(high, Lt),
            allow_nan=False,
            allow_infinity=False,
        )
    if get_origin(kind) is dict:
        key, item = get_args(kind)
        return st.dictionaries(values_of(key, []), values_of(item, []), max_size=3)
    return {str: st.text(), bool: st.booleans()}[kind]


def configs(section: type[Section]) -> st.SearchStrategy[Any]:
    def field(info: FieldInfo) -> st.SearchStrategy[Any]:
        below = section_type(info)
        return values_of(info.annotation, info.metadata) if below is None else configs(below)

    fields = {key: field(info) for key, info in section.model_fields.items()}
    return st.fixed_dictionaries(fields).map(lambda tree: section(**tree))


@given(configs(RunConfig), st.booleans())
@settings(max_examples=30)
def test_dump_and_load_are_inverses(config: RunConfig, unset_as_comments: bool) -> None:
    text = dump_toml(config, unset_as_comments=unset_as_comments)
    assert RunConfig.model_validate(tomllib.loads(text)) == config


def test_unset_settings_become_comments_that_load_to_the_same_config() -> None:
    text = dump_toml(STARTER, unset_as_comments=True)
    assert RunConfig.model_validate(tomllib.loads(text)) == STARTER
    assert "\n# seed = 0\n" in text
    assert "\nseed = 0\n" in dump_toml(STARTER)


def test_text_of_one_section() -> None:
    assert dump_toml(DataConfig(paths=["a", 'b"c'])) == (
        "# Prepared token files and their mix.\n"
        "\n"
        "# Directories that `disagmoe data prepare` wrote.\n"
        'paths = ["a", "b\\"c"]\n'
        "\n"
        "# Share of sequences that each path gives, in any unit; "
        "empty means in proportion to size.\n"
        "weights = []\n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (3, "3"),
        (1e-8, "1e-08"),
        ("a\n\x7f\u00e9", '"a\\n\\u007f\u00e9"'),
        ([0.5, 1], "[0.5, 1]"),
        ({"a b": 1}, '{"a b" = 1}'),
    ],
)
def test_values(value: object, text: str) -> None:
    assert format_value(value) == text
    assert tomllib.loads(f"value = {text}") == {"value": value}


def test_a_value_without_toml_form_is_refused() -> None:
    with pytest.raises(TypeError, match="None has no TOML form here"):
        format_value(None)
