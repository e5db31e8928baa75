"""`disagmoe calibrate`: what this machine reaches, for `plan` and `simulate`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from disagmoe.config.load import load_run_config
from disagmoe.errors import ConfigError
from disagmoe.units import MBIT

if TYPE_CHECKING:
    from disagmoe.costs.hardware import Precision

_DEVICES = ("auto", "cpu", "cuda")


def calibrate(
    out: Annotated[Path, typer.Option("--out", help="File to write; its name ends in .json.")],
    configs: Annotated[
        list[Path] | None,
        typer.Option(
            "--config",
            help="TOML file of a run whose ops are measured, may be repeated; two usual models "
            "if not given.",
        ),
    ] = None,
    precisions: Annotated[
        list[str] | None,
        typer.Option(
            "--precision", help="bf16 or fp32, may be repeated; that of `auto` if not given."
        ),
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    sequences: Annotated[
        list[int] | None,
        typer.Option(
            "--sequences", min=1, help="Sequences of a micro-batch, may be repeated; 1, 2 and 4."
        ),
    ] = None,
    nic_mbit: Annotated[
        float,
        typer.Option(
            "--nic-mbit", min=0, help="Rate of a network card in Mbit/s, each way; 0: not known."
        ),
    ] = 0.0,
) -> None:
    """Measure kernels, ops, memory and the link between two workers of this machine: of one core,
    or of one GPU.

    `hardware.attention_machine = "FILE"` (or `expert_machine`) makes `plan` and `simulate` take a
    worker to be such a machine. Takes about a minute, during which nothing else should run.
    """
    from disagmoe.config.hardware import MACHINE_FILE

    if out.suffix != MACHINE_FILE:
        raise ConfigError(f"--out {out}: the name of the file must end in {MACHINE_FILE}")
    if device not in _DEVICES:
        raise ConfigError(f"--device {device}: expected {', '.join(_DEVICES)}")
    types = [_precision(one) for one in precisions or []]
    runs = [load_run_config(path) for path in configs or []]
    # torch takes seconds to import
    import torch

    from disagmoe.calibrate.machine import Request
    from disagmoe.calibrate.machine import calibrate as measure
    from disagmoe.calibrate.shapes import SEQUENCES, usual_shapes
    from disagmoe.config.load import override
    from disagmoe.costs.measured import write_machine

    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("--device cuda: this machine has no CUDA device that torch can use")
    name = device if device != "auto" else "cuda" if cuda else "cpu"
    found = measure(
        Request(
            device=torch.device(name),
            precisions=types or ["bf16" if name == "cuda" else "fp32"],
            configs=[override(run, [f"cluster.device={name}"]) for run in runs]
            or usual_shapes(name),
            sequences=sequences or SEQUENCES,
            nic_bytes_per_s=nic_mbit * MBIT,
        ),
        lambda text: print(text, file=sys.stderr, flush=True),
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    write_machine(out, found)
    print(f"wrote {out}", file=sys.stderr)


def _precision(text: str) -> "Precision":
    match text:
        case "bf16" | "fp32":
            return text
        case _:
            raise ConfigError(f"--precision {text}: expected bf16 or fp32")
