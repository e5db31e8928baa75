"""A Prometheus of our own: what it answers, what it refuses, and that it is gone afterwards."""

import json
import time
from pathlib import Path

import pytest

from disagmoe.dashboards.prometheus import Prometheus, PrometheusError, has_numbers, own_prometheus

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]


def test_it_answers_refuses_and_ends(tmp_path: Path) -> None:
    targets = tmp_path / "targets.json"
    targets.write_text(json.dumps([{"targets": ["127.0.0.1:1"], "labels": {"run": "r"}}]))
    with own_prometheus(tmp_path, targets, [], every_s=1) as server:
        now_s = time.time()
        (one,) = server.at("vector(1) + 1", now_s)
        assert (one.last, one.labels) == (2.0, {})
        assert server.at("3", now_s)[0].last == 3.0
        (line,) = server.over("vector(7)", now_s - 10, now_s, 5.0)
        assert line.values == (7.0, 7.0, 7.0)
        (samples,) = server.at("vector(7)[10s:5s]", now_s)
        assert samples.values in ((7.0, 7.0), (7.0, 7.0, 7.0))
        assert server.at("nothing_of_that_name", now_s) == []
        with pytest.raises(PrometheusError, match=r"rate\(: .*parse error"):
            server.at("rate(", now_s)
        deadline = time.monotonic() + 20
        while not has_numbers(found := server.at("up", time.time())):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert (found[0].last, found[0].labels["run"]) == (0.0, "r")
    assert not server.ready()
    with pytest.raises(PrometheusError, match="does not answer"):
        server.at("up", now_s)


def test_one_that_does_not_start_says_why(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yml"
    rules.write_text("groups: nonsense")
    with (
        pytest.raises(PrometheusError, match=r"prometheus does not start:\n[\s\S]*nonsense"),
        own_prometheus(tmp_path, tmp_path / "targets.json", [rules], every_s=1),
    ):
        pass


def test_nobody_at_that_address() -> None:
    assert not Prometheus("http://127.0.0.1:1/").ready()
