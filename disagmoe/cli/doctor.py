"""`disagmoe doctor`: what stands in the way of a run, and what to do."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagmoe.config.cluster import ClusterConfig
from disagmoe.config.load import load_run_config, override
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlwrite import format_value

if TYPE_CHECKING:
    from disagmoe.doctor.finding import Finding

PROBLEMS = 1


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", help="Run that the cluster is to hold.")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of --config."),
    ] = None,
    address: Annotated[
        str,
        typer.Option("--address", metavar="auto|local|HOST:PORT", help="Ray to look at."),
    ] = "",
    gpu: Annotated[
        bool, typer.Option("--gpu", help="Demand what training on GPUs needs: CUDA, cupy, RDMA.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Check versions, GPUs, NCCL, ports, shared memory, Ray and its nodes; say what to do.

    Looks at the Ray that a run here would use: that of `--address`, of the config or of
    RAY_ADDRESS. With `--config` it says whether its nodes can hold that run. With `--gpu` a machine
    without GPU or cupy is a problem. Exit codes: 0 nothing
    is in the way, 1 something is, 2 the config cannot be used.
    """
    named = [f"cluster.address={format_value(address)}"] if address else []
    if sets and config is None:
        raise typer.BadParameter("--set changes settings of --config, which is not given")
    run = load_run_config(config, [*(sets or ()), *named]) if config else None
    cluster = (run or override(STARTER, named)).cluster
    findings: list[Finding] = []
    for finding in _findings(cluster, run, gpu=gpu):
        findings.append(finding)
        if not as_json:
            for line in lines(finding):
                typer.echo(line)
    if as_json:
        typer.echo(to_json(findings))
    if any(finding.level == "problem" for finding in findings):
        raise typer.Exit(PROBLEMS)


def _findings(cluster: ClusterConfig, run: RunConfig | None, *, gpu: bool) -> Iterator["Finding"]:
    """Versions, then what takes torch and Ray to see, unless these are missing or too old."""
    from disagmoe.doctor.versions import version_findings

    fit = True
    for finding in version_findings():
        fit = fit and finding.level != "problem"
        yield finding
    if fit:  # these take seconds to load
        from disagmoe.doctor.examine import examine

        yield from examine(cluster, run, gpu=gpu)


def lines(finding: "Finding") -> Iterator[str]:
    """Level, subject and what was found, then what to do; further lines are indented."""
    first, *rest = finding.found.splitlines()
    yield f"{finding.level:<8} {finding.subject}: {first}"
    for line in rest:
        yield f"         {line}"
    if finding.advice:
        yield f"         -> {finding.advice}"


def to_json(findings: "Sequence[Finding]") -> str:
    """Return all findings as one line, with `ok` for whether there is no problem."""
    ok = all(finding.level != "problem" for finding in findings)
    return json.dumps({"ok": ok, "findings": [asdict(finding) for finding in findings]})
