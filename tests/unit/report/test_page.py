"""The page: whole, of what there is, and safe from what it shows."""

import re
import time
from html.parser import HTMLParser
from pathlib import Path

from disagmoe.report.page import report_html
from disagmoe.report.rundata import read_run
from tests.unit.report.runs import add_result, add_trace, run_dir

NOW = time.struct_time((2026, 1, 2, 3, 4, 5, 0, 0, 0))
VOID = {"meta"}


class Outline(HTMLParser):
    """Fails on tags that are not closed in order; keeps the text of headings and cells."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append(data.strip())


def page(path: Path) -> tuple[str, Outline]:
    html = report_html(read_run(path), NOW)
    outline = Outline()
    outline.feed(html)
    outline.close()
    assert outline.open == []
    assert outline.addresses == []  # nothing is fetched
    assert re.search(r"https?://|@import|url\(", html) is None
    return html, outline


def test_a_run_that_has_ended_shows_all_parts(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "my-run")
    add_result(path)
    add_trace(path)
    html, outline = page(path)
    texts = outline.texts
    for title in ("Learning", "What becomes of the time", "One step", "Experts", "Channels"):
        assert title in texts
    assert texts[texts.index("3 of 8") + 1] == "steps"
    assert texts[texts.index("held-out loss") - 1] == "7"
    assert texts[texts.index("MFU") - 1] == "25.0%"
    assert "no update, because a <target> is missing" in texts
    assert "<target>" not in html
    assert "end: ok" in texts
    again = "the first step after the workers were started again"
    assert texts[texts.index(again) - 1] == "3"
    assert "workers started again 1 x, cause: died" in texts
    assert "Measured: step 2" in texts
    assert "attention forward, micro-batch 0: 1.0 s" in texts
    assert "as of 2026-01-02 03:04:05" in html
    assert {"A0>F0.act", "65 B", "2"} <= set(texts)
    assert html.count("<polyline") == 4 + 6 + 0  # one held-out loss is a dot


def test_a_run_under_way(tmp_path: Path) -> None:
    _, outline = page(run_dir(tmp_path / "r"))
    assert outline.texts[outline.texts.index("running") - 1] == "r"
    assert outline.texts[outline.texts.index("left") - 1] == "10.0 s"
    assert "no step is traced yet" in outline.texts


def test_a_run_that_goes_on_from_the_steps_of_another(tmp_path: Path) -> None:
    texts = page(run_dir(tmp_path / "r", first=4, steps=2))[1].texts
    assert texts[texts.index("steps") - 1] == "6 of 8"
    assert texts[texts.index("left") - 1] == "4.0 s"


def test_a_run_before_its_first_step(tmp_path: Path) -> None:
    _, outline = page(run_dir(tmp_path / "r", steps=0))
    assert outline.texts.count("no step is done yet") == 3


def test_a_failed_run_says_why_at_the_top(tmp_path: Path) -> None:
    path = run_dir(tmp_path / "r")
    add_result(path, status="failed", first_error="A0.0 died: <signal 9>", mfu=None)
    html, outline = page(path)
    assert "A0.0 died: <signal 9>" in outline.texts[:12]
    assert "MFU" not in outline.texts
    assert '<span class="pill failed">' in html
