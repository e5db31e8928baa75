"""The report in headless Chromium: its script runs, it is drawn, and nothing is fetched."""

import html
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from matplotlib.image import imread

from disagmoe.report.page import report_html
from disagmoe.report.rundata import read_run
from tests.unit.report.runs import add_result, add_trace, run_dir

pytestmark = pytest.mark.browser
QUIET = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
QUIET += ["--no-first-run", "--disable-quic", "--disable-gpu", "--no-sandbox"]
CHARTS = 7


def chromium(page: Path, profile: Path, *arguments: str) -> str:
    found = shutil.which("chromium") or "chromium"
    command = [found, "--headless", *QUIET, f"--user-data-dir={profile}"]
    done = subprocess.run(
        [*command, *arguments, page.as_uri()], capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = run_dir(tmp_path / "run")
    add_result(path)
    add_trace(path)
    page = tmp_path / "report.html"
    page.write_text(report_html(read_run(path), time.gmtime(0)), encoding="utf-8")
    return page


def test_the_script_prepares_each_chart(report: Path, tmp_path: Path) -> None:
    document = chromium(report, tmp_path / "profile", "--dump-dom")
    assert len(re.findall('class="chart"', document)) == CHARTS
    assert document.count('<div class="tip">') == CHARTS


@pytest.mark.parametrize("width", [400, 1280])
def test_it_fits_a_telephone_and_a_screen(width: int, report: Path, tmp_path: Path) -> None:
    framed = html.escape(report.read_text(encoding="utf-8"))
    page = tmp_path / "framed.html"
    page.write_text(
        f'<iframe id="frame" width="{width}" height="900" frameborder="0" srcdoc="{framed}">'
        "</iframe><script>onload = () => { document.body.dataset.needs = "
        "frame.contentDocument.documentElement.scrollWidth; }</script>",
        encoding="utf-8",
    )
    document = chromium(page, tmp_path / "profile", "--dump-dom")
    (needed,) = re.findall(r'data-needs="(\d+)"', document)
    assert 0.9 * width < int(needed) <= width


def test_it_is_drawn(report: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    chromium(report, tmp_path / "profile", f"--screenshot={picture}", "--window-size=1060,2400")
    pixels = imread(picture)[..., :3]
    assert pixels.shape == (2400, 1060, 3)
    blue, orange = (0x2F / 255, 0x6F / 255, 0xB5 / 255), (0xFB / 255, 0xC4 / 255, 0x7D / 255)
    for colour in (blue, orange):  # lines of the first group, and experts in the timeline
        assert (abs(pixels - colour).max(axis=-1) < 0.02).sum() > 100
