"""`disagmoe bench`: measured ratios, both sides in one run."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from disagmoe.cli.results import stdout_for_results
from disagmoe.config.load import load_run_config
from disagmoe.config.tomlwrite import format_value
from disagmoe.units import MIB, format_bytes

if TYPE_CHECKING:
    from disagmoe.bench.compute import Outcome
    from disagmoe.bench.overlap import Comparison

FAILED = 1
ROUNDS, QUICK_ROUNDS = 5, 3
GIGA = 1e9
SIZES = (4, 8)
"""Sequences per micro-batch that `compute` tries."""

app = typer.Typer(no_args_is_help=True, help="Measure against what people use today.")


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
        stdout_for_results(),
        temporary_folder() as scratch,
        stage(systems, folder / scenarios[0].config, Path(scratch)) as up,
    ):
        _say(f"{len(up.nodes)} hosts, cores {', '.join(str(node.core) for node in up.nodes)}")
        for scenario in scenarios:
            for comparison in compare(scenario, folder, up, rounds, _say):
                _say("\n".join(_table(comparison)))
                comparisons.append(comparison)
    figures = all_figures(comparisons, rounds) if as_json else None
    _conclude(checks(comparisons), figures)


@app.command("two-hop")
def two_hop(
    quick: Annotated[bool, typer.Option("--quick", help="The slow link alone.")] = False,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Steps of each way [default: 5, quick: 3]."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file of a run; configs/bench/two_hop.toml else."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train with a row per expert worker and with a row per host, over a slow network.

    Hosts are network namespaces with one core each, one with an attention worker and one with two
    expert workers. Compares bytes on the link with those that routing decisions ask for. Needs root
    and iproute2. Exits with 1 when the comparison is not valid or rows per host are no faster, and
    says why.
    """
    # torch and Ray take seconds to import, which `disagmoe --help` should not pay
    from disagmoe.bench.scenarios import configs_folder
    from disagmoe.bench.two_hop import COMPUTE_BOUND, LINK_BOUND
    from disagmoe.bench.two_hop import compare as compare_ways
    from disagmoe.bench.two_hop_verdict import as_json as all_figures
    from disagmoe.bench.two_hop_verdict import checks, table
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    run = config or configs_folder() / "two_hop.toml"
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    multiples = (LINK_BOUND,) if quick else (LINK_BOUND, COMPUTE_BOUND)
    comparisons = []
    with sigterm_raises(), stdout_for_results(), temporary_folder() as scratch:
        for comparison in compare_ways(run, rounds, multiples, Path(scratch), _say):
            _say("\n".join(table(comparison)))
            comparisons.append(comparison)
    figures = all_figures(comparisons, rounds) if as_json else None
    _conclude(checks(comparisons), figures)


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

    with sigterm_raises(), stdout_for_results(), temporary_folder() as folder:
        cost = measure(workers, steps, Path(folder))
    _say(
        f"{cost.workers} workers, {cost.steps} steps: {cost.step_overhead_ms:.2f} ms over 100 ms "
        f"(median step {cost.median_overhead_ms:.2f} ms), {cost.undriven_overhead_ms:.2f} ms where "
        f"the driver does not call; {cost.call_us:.0f} us of the driver per worker and step, so "
        f"that {cost.workers_at_full_driver} workers take all of a core"
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
    from disagmoe.bench.outcomes import HEADER, line_of
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    with sigterm_raises(), stdout_for_results(), temporary_folder() as folder:
        found = run_drill(seed, count, Path(folder), _say)
    _say("\n".join([HEADER, *map(line_of, found.outcomes)]))
    told = found.to_dict()
    keys = ("faults", "recovered", "truthful_errors", "hangs", "leaks", "bit_equal")
    _say(", ".join(f"{key} {told[key]}" for key in keys) + f"; {found.elapsed_s:.0f} s")
    if as_json:
        typer.echo(json.dumps(told))
    if not found.good:
        raise typer.Exit(FAILED)


@app.command()
def link(
    config: Annotated[Path, typer.Option("--config", help="TOML file of the run to be placed.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
    ] = None,
    address: Annotated[
        str, typer.Option("--address", metavar="auto|local|HOST:PORT", help="Ray to use.")
    ] = "",
    mib: Annotated[int, typer.Option("--mib", min=1, help="MiB of a large message.")] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure every edge between the workers of a run, where they would be placed.

    Takes the run's nodes, transport, network devices and channels, but neither its data nor its
    directory. Edges of a channel are measured in rounds in which each worker sends to one other and
    receives from one. Warns of each that is slower than the machines of `[hardware]`, which plans
    are made with.
    """
    # torch and Ray take seconds to import, which `disagmoe --help` should not pay
    from disagmoe.api.preflight import resolved_on
    from disagmoe.bench.link import measure_edges
    from disagmoe.cluster.join import choose, joined
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    named = [f"cluster.address={format_value(address)}"] if address else []
    run = load_run_config(config, [*(sets or ()), *named])
    with (
        sigterm_raises(),
        stdout_for_results(),
        joined(choose(run.cluster, os.environ)) as there,
        temporary_folder() as scratch,
    ):
        found = measure_edges(resolved_on(run, there), there, Path(scratch), mib * MIB, _say)
    if as_json:
        typer.echo(json.dumps(found.to_dict()))
        return
    for line in found.lines():
        typer.echo(line)


@app.command()
def compute(
    config: Annotated[
        Path | None,
        typer.Option("--config", help="TOML file of a run; configs/bench/compute.toml else."),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One micro-batch size for all, that of the config.")
    ] = False,
    rounds: Annotated[
        int | None,
        typer.Option("--rounds", min=1, help="Steps of each side [default: 5, quick: 3]."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Train a model with our workers, in one process, and with Hugging Face Transformers.

    All sides have the same model, initial weights, tokens, type and cores, each with the
    micro-batch size that is best for itself, and take turns. Of Transformers' implementations of
    experts the fastest counts. Needs the extra `hf`. Exits with 1 when the comparison is not valid,
    and says why.
    """
    # torch and Ray take seconds to import, which `disagmoe --help` should not pay
    from disagmoe.bench.compute import compare as compare_compute
    from disagmoe.bench.compute_figures import as_json as all_figures
    from disagmoe.bench.compute_figures import checks
    from disagmoe.bench.scenarios import configs_folder
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    run = load_run_config(config or configs_folder() / "compute.toml", sets or ())
    sizes = (run.parallel.micro_batch_size,) if quick else SIZES
    rounds = rounds or (QUICK_ROUNDS if quick else ROUNDS)
    with sigterm_raises(), temporary_folder() as scratch:
        outcome = compare_compute(run, Path(scratch), sizes, rounds, _say)
    _say("\n".join(_compute_table(outcome)))
    figures = all_figures(outcome, rounds) if as_json else None
    _conclude(checks(outcome), figures)


@app.command()
def predict(
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer rates and scenarios, smaller batches.")
    ] = False,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Measured steps of each system.")
    ] = ROUNDS,
    configs: Annotated[
        Path | None, typer.Option("--configs", help="Folder with the run configs of scenarios.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Predict steps and memory on the hosts of `bench overlap`, then measure them.

    Calibrates this machine first, at a rate that no case has. Then every layout is simulated, and
    trained with its best settings by the simulation. Needs root and iproute2. Exits with 1 when an
    error is larger than it should be.
    """
    from disagmoe.bench.predict import conditions
    from disagmoe.bench.predict import predict as cases_of
    from disagmoe.bench.predict_verdict import as_json as all_figures
    from disagmoe.bench.predict_verdict import checks
    from disagmoe.bench.scenarios import configs_folder
    from disagmoe.cluster.local import temporary_folder
    from disagmoe.cluster.signals import sigterm_raises

    every = conditions(quick=quick)
    with sigterm_raises(), temporary_folder() as scratch:
        cases = list(cases_of(every, configs or configs_folder(), rounds, Path(scratch), _say))
    figures = all_figures(cases, rounds)
    _say(
        f"steps: error {figures['median_error']:.1%} median, {figures['worst_error']:.1%} worst; "
        f"memory: {figures['memory_median_error']:.1%} median; the predicted best layouts are at "
        f"most {figures['pick_regret']:.1%} slower than the measured best"
    )
    _conclude(checks(cases), figures if as_json else None)


def _compute_table(outcome: "Outcome") -> list[str]:
    from disagmoe.bench.compute_figures import (
        fastest,
        loss_difference,
        lower_bound_s,
        machine,
        norm_difference,
        step_s,
        tokens_per_s,
    )

    theirs = tokens_per_s(fastest(outcome))
    lines = [
        f"{machine()}, {outcome.cores} cores, {outcome.config.train.precision}, "
        f"{outcome.gemm_flops_per_s / GIGA:.0f} GFLOP/s in products; a step needs "
        f"{outcome.flops / GIGA:.0f} GFLOP, {lower_bound_s(outcome):.2f} s",
        f"{'':<12} {'step':>8} {'tokens/s':>9} {'of fastest':>11} {'micro-batch':>12} "
        f"{'first loss':>11} {'its norm':>9}",
    ]
    for name, side in outcome.sides.items():
        if not side.steps_s:
            lines.append(f"{name:<12} left out: {side.left_out}")
            continue
        first = side.learned[0] if side.learned else None
        lines.append(
            f"{name:<12} {step_s(side):6.2f} s {tokens_per_s(side):9.0f} "
            f"{tokens_per_s(side) / theirs:11.2f} {side.micro_batch_size:12} "
            + (f"{first.loss:11.4f} {first.grad_norm:9.4f}" if first else "")
            + (f"  in its trial of {side.step_tokens} tokens" if side.left_out else "")
        )
    for worker, shares in outcome.sides["run"].shares.items():
        lines.append(
            f"  {worker}: computes {shares.utilisation:.1%}, waits for the network "
            f"{shares.exposed_communication:.1%}, bubble {shares.bubble:.1%}"
        )
    return [
        *lines,
        f"in the first step losses differ by at most {loss_difference(outcome):.1e}, "
        f"gradient norms by {norm_difference(outcome):.1e}",
    ]


def _conclude(found: Mapping[str, bool], figures: Mapping[str, Any] | None) -> None:
    """Say which checks failed, print `figures` as JSON if there are any, and end with 1 where a
    check failed."""
    for name, holds in found.items():
        if not holds:
            _say(f"not valid: {name}: no")
    if figures is not None:
        typer.echo(json.dumps(figures))
    if not all(found.values()):
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


@app.command()
def head(
    vocab_size: Annotated[int, typer.Option(min=2, help="Rows of the LM head.")] = 151_936,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of the one sequence.")] = 4096,
    chunk_tokens: Annotated[
        int, typer.Option(min=0, help="`train.loss.chunk_tokens`; 0 is automatic.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure how much memory a training step takes with a large vocabulary.

    Exits with 1 when it is as much as all logits in fp32 would take, once.
    """
    from disagmoe.bench.head import measure_head

    found = measure_head(vocab_size, tokens, chunk_tokens=chunk_tokens)
    if as_json:
        print(json.dumps(found.as_json()))
    else:
        print(
            f"{tokens} tokens, vocabulary {vocab_size}: a step takes "
            f"{format_bytes(found.step_bytes)} beyond weights, all logits would take "
            f"{format_bytes(found.full_logits_bytes)}"
        )
    if not found.ok:
        raise typer.Exit(FAILED)
