"""Files that are no TOML, and --set assignments that are none."""

from pathlib import Path

import pytest

from disagmoe.config.tomlread import Tree, apply_set, apply_sets, read_toml
from disagmoe.errors import ConfigError

BROKEN = {
    "[train]\nlr = 2e-3x\n": (
        "line 2, column 10: Expected newline or end of document after a statement\n"
        "    lr = 2e-3x\n"
        "             ^"
    ),
    "[data]\na = 1\n[data]\n": "line 3, column 6: Cannot declare ('data',) twice\n    [data]\n"
    + " " * 9
    + "^",
    "a = 1\nb = [1,": "line 2: Invalid value at the end of the file",
    "a": "line 1: Expected '=' after a key in a key/value pair at the end of the file",
}


@pytest.mark.parametrize(("text", "message"), BROKEN.items())
def test_broken_toml_shows_the_place(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_byte_order_mark_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "a"\r\n[train]\r\nsteps = 3\r\n')
    assert read_toml(path) == {"name": "a", "train": {"steps": 3}}


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.toml: no such file; `disagmoe config init` writes"):
        read_toml(tmp_path / "a.toml")


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r": is a directory; expected a TOML file$"):
        read_toml(tmp_path)


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"file/run\.toml: cannot be read: Not a directory$"):
        read_toml(tmp_path / "file" / "run.toml")


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b"a = 1\n\xff")
    with pytest.raises(ConfigError, match=r": is not UTF-8 text \(byte 6\); expected a TOML file$"):
        read_toml(path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("-3", -3),
        ("true", True),
        ("bf16", "bf16"),
        ("runs/a b=c", "runs/a b=c"),
        ("'1'", "1"),
        ('["x", "y"]', ["x", "y"]),
        (" 3 ", 3),
    ],
)
def test_values_of_sets(text: str, value: object) -> None:
    tree: Tree = {"a": {"b": 0, "c": 1}}
    assert apply_set(tree, f"a.b={text}") == "a.b"
    assert tree == {"a": {"b": value, "c": 1}}


def test_sets_make_the_tables_they_need() -> None:
    tree: Tree = {}
    assert apply_sets(tree, ["a.b.c=1", "x=2", "x=3"]) == (
        {"a.b.c": "a.b.c=1", "x": "x=3"},
        [],
    )
    assert tree == {"a": {"b": {"c": 1}}, "x": 3}


@pytest.mark.parametrize(
    ("assignment", "problem"),
    [
        ("a.b", "expected KEY=VALUE, as in train.steps=10"),
        ("=3", "expected KEY=VALUE, as in train.steps=10"),
        ("a..b=3", "expected KEY=VALUE, as in train.steps=10"),
        ("", "expected KEY=VALUE, as in train.steps=10"),
        ("a.b=", 'no value; write "" for empty text'),
        ("s.t.u=3", "s is one setting and has none below it"),
        (
            "a.b=[x]",
            "the value is not TOML: Invalid value (the shell may have taken the quotes: "
            "put the whole assignment in single quotes)",
        ),
    ],
)
def test_broken_sets(assignment: str, problem: str) -> None:
    tree: Tree = {"s": 1}
    assert apply_sets(tree, [assignment]) == ({}, [f"--set {assignment}: {problem}"])
