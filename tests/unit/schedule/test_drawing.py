"""Pictures of a timeline, by their structure."""

from pathlib import Path

import pytest

from disagmoe.errors import ConfigError
from disagmoe.schedule.bars import Chart, Shade
from disagmoe.schedule.compile import build_programs
from disagmoe.schedule.drawing import save
from disagmoe.schedule.ir import ProgramSpec
from disagmoe.schedule.layout import Layout
from disagmoe.schedule.planned import planned_chart


def chart(groups: int = 1) -> Chart:
    layout = Layout(layers=2, groups=groups, fused_residual=groups > 1)
    spec = ProgramSpec(layout=layout, micro_batches=3)
    return planned_chart(build_programs(spec, schedule="af_pipe", in_flight=3), "two layers")


def test_a_picture_names_lanes_shades_and_figures(tmp_path: Path) -> None:
    drawn = chart()
    save(drawn, tmp_path / "plan.svg")
    text = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    shades = {str(bar.shade) for bar in drawn.bars}
    assert {str(Shade.ATTENTION_FWD), str(Shade.EXPERTS_BWD), str(Shade.HEAD)} <= shades
    for name in ("A0", "F0", *drawn.channels, *shades, *drawn.title):
        assert name.replace(">", "&gt;") in text


def test_the_same_chart_is_the_same_file(tmp_path: Path) -> None:
    save(chart(), tmp_path / "one.svg")
    save(chart(), tmp_path / "two.svg")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_png_is_a_picture_too(tmp_path: Path) -> None:
    save(chart(groups=2), tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_another_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"plan\.gif; name a file that ends in \.svg or \.png"):
        save(chart(), tmp_path / "plan.gif")
