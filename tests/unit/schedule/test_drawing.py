"""Pictures of a timeline, by their structure."""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from disagmoe.errors import ConfigError, ScheduleError
from disagmoe.schedule import drawing
from disagmoe.schedule.bars import Chart, Shade
from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.drawing import COLOURS, save
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout
from disagmoe.schedule.planned import planned_chart

SVG = "{http://www.w3.org/2000/svg}"


def chart(groups: int = 1) -> Chart:
    layout = Layout(layers=2, groups=groups, fused_residual=groups > 1)
    spec = ProgramSpec(layout=layout, micro_batches=3)
    return planned_chart(build_programs(spec, schedule="af_pipe", in_flight=3), "two layers")


def drawn(path: Path) -> tuple[dict[str, int], list[str]]:
    """Bars of each lane and shade in the picture, and all text in it."""
    root = ElementTree.parse(path).getroot()
    bars = {
        # either paths, or one that is used several times
        group.attrib["id"]: len([*group.iter(f"{SVG}use")] or [*group.iter(f"{SVG}path")])
        for group in root.iter(f"{SVG}g")
        if ": " in group.attrib.get("id", "")
    }
    return bars, ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]


def expected(planned: Chart, start: float = 0.0, end: float = float("inf")) -> dict[str, int]:
    return Counter(
        f"{bar.lane}: {bar.shade}" for bar in planned.bars if bar.start < end and bar.end > start
    )


def test_every_bar_is_drawn_in_its_lane_and_shade(tmp_path: Path) -> None:
    planned = chart(groups=2)
    save(planned, tmp_path / "plan.svg")
    bars, text = drawn(tmp_path / "plan.svg")
    assert bars == expected(planned)
    lanes = [*planned.workers, *planned.channels]
    assert [line for line in text if line in lanes] == lanes
    assert [line for line in text if line in planned.title] == list(planned.title)
    legend = [str(shade) for shade in Shade if shade in {bar.shade for bar in planned.bars}]
    assert [line for line in text if line in legend] == legend
    assert f"time in {planned.unit}" in text


def test_bars_with_room_hold_their_micro_batch(tmp_path: Path) -> None:
    planned = chart()
    save(planned, tmp_path / "plan.svg", start=5.0, end=10.0)
    bars, text = drawn(tmp_path / "plan.svg")
    assert bars == expected(planned, 5.0, 10.0)
    shown = [bar for bar in planned.bars if bar.start < 10.0 and bar.end > 5.0]
    # an embedding of 0.05 has no room; ticks are numbers too, from 5 on
    numbers = [str(bar.mb) for bar in shown if bar.mb is not None and bar.shade is not Shade.EMBED]
    assert Counter(line for line in text if line in ("0", "1", "2")) == Counter(numbers)


def test_the_same_chart_is_the_same_file(tmp_path: Path) -> None:
    for suffix in ("svg", "png"):
        one, two = tmp_path / f"one.{suffix}", tmp_path / f"two.{suffix}"
        save(chart(), one)
        save(chart(), two)
        assert one.read_bytes() == two.read_bytes()
    assert one.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_very_many_bars_are_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "_MANY", 10)
    save(chart(), tmp_path / "plan.svg")
    bars, text = drawn(tmp_path / "plan.svg")
    assert sum(bars.values()) == 0
    assert "<image" in (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert set(chart().workers) <= set(text)


def test_every_shade_has_a_colour_of_its_own() -> None:
    assert COLOURS.keys() == set(Shade)
    assert len(set(COLOURS.values())) == len(Shade)


@pytest.mark.parametrize("name", ["plan.gif", "plan", "svg"])
def test_another_format_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"{name}; name a file that ends in \.svg or \.png"):
        save(chart(), tmp_path / name)


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write .*plan\.svg: No such file or directory"):
        save(chart(), tmp_path / "nowhere" / "plan.svg")


def test_no_time_is_no_picture(tmp_path: Path) -> None:
    with pytest.raises(ScheduleError, match="cannot draw from 2 to 1; give 0 <= from < to"):
        save(chart(), tmp_path / "plan.svg", start=2.0, end=1.0)
    assert list(tmp_path.iterdir()) == []
