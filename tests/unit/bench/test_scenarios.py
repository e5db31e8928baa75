"""Which scenarios run, on which configs, with which workers."""

from pathlib import Path

import pytest

from disagmoe.bench.scenarios import (
    AF_PIPE,
    EP_1F1B,
    SCENARIOS,
    SYSTEMS,
    choose,
    configs_folder,
    workers_of,
)
from disagmoe.config.load import load_run_config, override
from disagmoe.errors import ConfigError

CONFIGS = Path(__file__).resolve().parents[3] / "configs" / "bench"


def test_all_scenarios_by_default() -> None:
    assert choose(SCENARIOS, [], quick=False) == SCENARIOS


def test_quick_keeps_those_that_decide_at_one_rate_without_a_search() -> None:
    chosen = choose(SCENARIOS, [], quick=True)
    assert [scenario.name for scenario in chosen] == ["equal", "unequal"]
    assert all(s.rates == (1.0,) and s.micro_batch_sizes == () for s in chosen)


def test_names_choose_in_quick_runs_too() -> None:
    assert [s.name for s in choose(SCENARIOS, ["long"], quick=True)] == ["long"]


def test_an_unknown_name_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ConfigError, match="no scenario lang; scenarios are equal, fine_grained"):
        choose(SCENARIOS, ["lang"], quick=False)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_fits_every_config(scenario: object, system: str) -> None:
    config = load_run_config(CONFIGS / scenario.config)  # type: ignore[attr-defined]
    two_hosts = override(config, workers_of(system, 2))
    assert two_hosts.parallel.workers == 2


def test_an_odd_host_is_for_attention() -> None:
    assert workers_of(AF_PIPE, 3)[1:] == [
        "parallel.attention_workers=2",
        "parallel.expert_workers=1",
    ]
    assert workers_of(EP_1F1B, 3)[1:] == [
        "parallel.attention_workers=3",
        "parallel.expert_workers=3",
    ]


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
