"""`disagmoe bench`: measured ratios, both sides in one run."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagmoe.units import format_bytes

if TYPE_CHECKING:
    from disagmoe.bench.overlap import Comparison

FAILED = 1
ROUNDS, QUICK_ROUNDS = 5, 3

app = typer.Typer(no_args_is_help=True, help="Measure against what people use today.")


@app.callback()
def _group() -> None:
    """Keep sub-commands although there may be only one."""


@app.command()
def overlap(
    quick: Annotated[
        bool, typer.Option("--quick", help="Two scenarios, one rate each, no search of sizes.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", min=1, help="Steps of each system at each rate [default: 5, quick: 3]."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="SCENARIO", help="Leave the others out; may be repeated."),
    ] = None,
    configs: Annotated[
        Path | None, typer.Option("--configs", help="Folder with the run configs of scenarios.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train with the split and with expert parallelism over a slow network, on this machine.

    Hosts are network namespaces with one core each, joined by links of a limited rate, with a Ray
    node on each. All systems have the same model, tokens, type, code and cores, each with the
    micro-batch size that is best for itself, and take turns. Needs root and iproute2. Exits with 1
    when the comparison is not valid, and says why.
    """
    # torch and Ray take seconds to import, which `disagmoe --help` should not pay
    from disagmoe.bench.overlap import compare, stage
    from disagmoe.bench.scenarios import SCENARIOS, choose, configs_folder
    from disagmoe.bench.verdict import as_json as all_figures
    from disagmoe.bench.verdict import checks
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    scenarios = choose(SCENARIOS, only or [], quick=quick)
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    systems = list(dict.fromkeys(s for scenario in scenarios for s in scenario.systems))
    folder = configs or configs_folder()
    comparisons: list[Comparison] = []
    with (
        sigterm_raises(),
        temporary_folder() as scratch,
        stage(systems, folder / scenarios[0].config, Path(scratch)) as up,
    ):
        _say(f"{len(up.nodes)} hosts, cores {', '.join(str(node.core) for node in up.nodes)}")
        for scenario in scenarios:
            for comparison in compare(scenario, folder, up, rounds, _say):
                _say("\n".join(_table(comparison)))
                comparisons.append(comparison)
    found = checks(comparisons)
    for name, holds in found.items():
        if not holds:
            _say(f"not valid: {name}: no")
    if as_json:
        typer.echo(json.dumps(all_figures(comparisons, rounds)))
    if not all(found.values()):
        raise typer.Exit(FAILED)


@app.command()
def driver(
    workers: Annotated[int, typer.Option(min=2, help="Stub workers, an even number.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Steps that are measured.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure what the driver adds to a step: stub workers pause for 100 ms, then join the real
    world reduction. Exits with 1 when that is more than 5 ms."""
    from disagmoe.bench.driver import LIMIT_MS, measure
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    with sigterm_raises(), temporary_folder() as folder:
        cost = measure(workers, steps, Path(folder))
    _say(
        f"{cost.workers} workers, {cost.steps} steps: {cost.step_overhead_ms:.2f} ms over 100 ms "
        f"(median step {cost.median_overhead_ms:.2f} ms); {cost.call_us:.0f} us of the driver per "
        f"worker and step, so that {cost.workers_at_full_driver} workers take all of a core"
    )
    if as_json:
        typer.echo(json.dumps(cost.to_dict()))
    if cost.step_overhead_ms > LIMIT_MS:
        raise typer.Exit(FAILED)


@app.command()
def faults(
    seed: Annotated[int, typer.Option(help="Decides which faults come, where and when.")] = 0,
    count: Annotated[int, typer.Option("--faults", min=2, help="How many.")] = 44,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a tiny model while workers and driver are killed, suspended and fail in other ways, and
    compare with a run in which they are not. Exits with 1 unless every fault is noticed within 30 s
    and overcome, nothing is left behind, and all bits are the same."""
    from disagmoe.bench.faults import run_drill
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    with sigterm_raises(), temporary_folder() as folder:
        found = run_drill(seed, count, Path(folder), _say)
    told = found.to_dict()
    keys = ("faults", "recovered", "truthful_errors", "hangs", "leaks", "bit_equal")
    _say(", ".join(f"{key} {told[key]}" for key in keys) + f"; {found.elapsed_s:.0f} s")
    if as_json:
        typer.echo(json.dumps(told))
    if not found.good:
        raise typer.Exit(FAILED)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _table(comparison: "Comparison") -> list[str]:
    from disagmoe.bench.scenarios import AF_PIPE
    from disagmoe.bench.verdict import allowed, ratio

    lines = [
        f"{'':<12} {'step':>8} {'bound':>8} {'of it':>6} {'computes':>14} {'exposed':>14} "
        f"{'link':>10} {'split faster by':>16} {'allowed':>8}"
    ]
    for system, measured in comparison.systems.items():
        busy, exposed = (
            " ".join(f"{shares[kind]:6.0%}" for shares in measured.shares)
            for kind in ("utilisation", "exposed_communication")
        )
        against = (
            f"{ratio(comparison, system):16.2f} {allowed(comparison, system):8.2f}"
            if system != AF_PIPE
            else ""
        )
        lines.append(
            f"{system:<12} {measured.step_s:6.2f} s {measured.lower_bound_s:6.2f} s "
            f"{measured.share_of_bound:6.0%} {busy:>14} {exposed:>14} "
            f"{format_bytes(measured.load.link_bytes):>10} {against}".rstrip()
        )
    return lines
