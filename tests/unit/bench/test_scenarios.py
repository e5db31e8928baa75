"""Which scenarios run, on which configs, with which workers."""

from pathlib import Path

import pytest

from disagmoe.bench.scenarios import (
    SCENARIOS,
    SYSTEMS,
    TWO_TO_ONE,
    Scenario,
    System,
    choose,
    configs_folder,
)
from disagmoe.config.load import load_run_config, override
from disagmoe.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "bench"


def test_all_scenarios_by_default() -> None:
    assert choose(SCENARIOS, [], quick=False) == SCENARIOS


def test_quick_keeps_those_that_decide_at_one_rate_without_a_search() -> None:
    chosen = choose(SCENARIOS, [], quick=True)
    assert [scenario.name for scenario in chosen] == ["equal", "unequal"]
    assert all(s.rates == (1.0,) and s.micro_batches == (1,) for s in chosen)
    assert all(s.systems == SYSTEMS for s in chosen)


def test_names_choose_in_quick_runs_too() -> None:
    assert [s.name for s in choose(SCENARIOS, ["long"], quick=True)] == ["long"]


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="no scenario lang; scenarios are equal, fine_grained"):
        choose(SCENARIOS, ["lang"], quick=False)


@pytest.mark.parametrize(
    ("scenario", "system"),
    [(scenario, system) for scenario in SCENARIOS for system in scenario.systems],
    ids=lambda value: value.name,
)
def test_every_system_fits_every_config(scenario: Scenario, system: System) -> None:
    config = load_run_config(CONFIGS / scenario.config)
    two_hosts = override(config, system.settings(2))
    assert two_hosts.parallel.workers == 2


def test_an_odd_host_is_for_attention() -> None:
    split, plain, _ = SYSTEMS
    assert split.settings(3)[1:3] == [
        "parallel.attention_workers=2",
        "parallel.expert_workers=1",
    ]
    assert plain.settings(3)[1:3] == [
        "parallel.attention_workers=3",
        "parallel.expert_workers=3",
    ]


def test_shares_are_those_of_both_sides() -> None:
    assert TWO_TO_ONE[0].settings(2)[3:] == [
        "parallel.attention_shares=[2.0, 1.0]",
        "parallel.expert_shares=[2.0, 1.0]",
    ]


def test_no_micro_batch_leaves_a_worker_without_a_sequence() -> None:
    per_host = (0.5, 1, 2)
    split, plain, _ = SYSTEMS
    assert split.micro_batch_sizes(2, per_host) == [1, 2, 4]
    assert plain.micro_batch_sizes(2, per_host) == [2, 4]
    assert TWO_TO_ONE[0].micro_batch_sizes(2, per_host) == [3]


def test_configs_are_found_below_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parents[1])
    assert configs_folder() == Path("configs/bench")


def test_no_configs_say_where_they_were_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.prefix", str(tmp_path))
    with pytest.raises(ConfigError, match=r"no configs/bench and no .*share/.*; .* --configs"):
        configs_folder()
