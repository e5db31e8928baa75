"""`disagmoe invariance`: many layouts, each compared with training in one process."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagmoe.config.load import load_run_config

if TYPE_CHECKING:
    from disagmoe.runtime.invariance.run import Outcome, Verdict

FAILED = 1


def invariance(
    config: Annotated[Path, typer.Option("--config", help="A small run config (TOML).")],
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="Processes that try layouts at the same time.")
    ] = 2,
) -> None:
    """Show that the layout never changes the result.

    Trains 3 steps of the model under many layouts (micro-batches, groups, workers, depth in flight,
    schedule, dedupe; threads and gloo processes) and compares losses, every gradient, the global
    norm, parameters and routing with training in one process: in fp64 and fp32, and bit for bit
    where only depth, schedule or transport differ. Layouts that the model cannot have are left out
    and named. Exits with 1 if any other is off.
    """
    # torch takes seconds to import, which `disagmoe --help` should not pay
    import torch

    from disagmoe.runtime.invariance.layouts import cases, fitting
    from disagmoe.runtime.invariance.parallel import run_divided

    run = load_run_config(config, sets or ())
    torch.set_num_threads(1)
    tried, left_out = fitting(run, cases())
    for case, why in left_out.items():
        print(f"left out: {case.name}: {why}", file=sys.stderr)
    print(_HEADER, file=sys.stderr)
    verdict = run_divided(run, tried, _report, jobs)
    _summary(verdict)
    if as_json:
        print(json.dumps(verdict.as_json()))
    if not verdict.ok:
        raise typer.Exit(FAILED)


_COLUMNS = ("loss", "balance", "z", "norm", "grads", "values", "update")
_HEADER = f"{'layout':<46} {'type':<5}" + "".join(f"{name:>8}" for name in _COLUMNS) + "  verdict"


def _report(outcome: "Outcome") -> None:
    worst = outcome.worst
    numbers = "".join(f"{getattr(worst, name):>8.0e}" for name in _COLUMNS)
    print(
        f"{outcome.case.name:<46} {outcome.rule.precision:<5}{numbers}  {_verdict(outcome)}",
        file=sys.stderr,
        flush=True,
    )


def _verdict(outcome: "Outcome") -> str:
    if outcome.ok:
        return "ok"
    if outcome.worst.flips:
        return f"{outcome.worst.flips} tokens went elsewhere"
    if outcome.unequal_bits:
        return f"bits differ: {outcome.unequal_bits[0]}"
    return f"off (worst gradient: {outcome.worst.worst_grad})"


def _summary(verdict: "Verdict") -> None:
    seen = verdict.as_json()
    print(
        "\nworst relative difference from the reference (norm of the difference over the norm of "
        "the reference tensor):",
        file=sys.stderr,
    )
    for precision, worst in seen["worst"].items():
        numbers = ", ".join(f"{name} {worst[name]:.1e}" for name in _COLUMNS)
        print(f"  {precision} (tolerance {worst['tolerance']:g}): {numbers}", file=sys.stderr)
    print(
        "  fp64 trains on by itself; fp32 takes over the reference's state before every step, "
        "where 'update' judges\n  the new parameters by AdamW on the run's own gradients and "
        "'values' is shown, not judged",
        file=sys.stderr,
    )
    if seen["zero_gradients"]:
        names = ", ".join(seen["zero_gradients"])
        print(f"  gradients that are zero by structure: {names}", file=sys.stderr)
    state = "equal" if verdict.ok else "NOT equal"
    print(f"{seen['layouts']} layouts, {state} to one process", file=sys.stderr)
