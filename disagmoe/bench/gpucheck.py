"""What `make test-gpu` finds out, part by part, and what of it is not as it should be."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

import torch

from disagmoe.bench.gpujobs import (
    END_READS,
    Told,
    counts_wait_s,
    hidden_share,
    measure_edges,
    run_jobs,
    train,
)
from disagmoe.bench.gpuoverlap import MeasureOverlap, Overlap
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch, next_token_batch
from disagmoe.runtime.edges import EdgeRate
from disagmoe.runtime.invariance.fleet import MakeTransport, ProcessFleet
from disagmoe.runtime.invariance.layouts import Case
from disagmoe.runtime.invariance.run import run_invariance

LEAST_HIDDEN = 0.5
"""Share of the shorter of transfers and products that goes on behind the longer."""

Seen = dict[str, Any]


def with_peers(
    make: MakeTransport,
    devices: Sequence[str],
    config: RunConfig,
    overlap: Callable[..., Overlap] | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield, as they are found, what two workers of the resolved `config` see of `make` on
    `devices`: rates of channels, overlap, and a step in which they watch themselves."""
    rates = run_jobs(measure_edges, make, config, devices)
    yield "channels", channels([rate for found in rates.values() for rate in found])
    both = run_jobs(overlap or MeasureOverlap(), make, config, devices)
    seen = both["F0.0"]
    waits = "; ".join(dict.fromkeys(each.host_waits for each in both.values() if each.host_waits))
    yield "overlap", {**asdict(seen), "hidden_share": seen.hidden_share, "host_waits": waits}
    told = run_jobs(train, make, config, devices, batches(config))
    yield "step", {name: of_worker(one) for name, one in told.items()}


def channels(rates: Sequence[EdgeRate]) -> Seen:
    """The slowest edge of each channel."""
    found: Seen = {}
    for rate in sorted(rates, key=lambda rate: -rate.bytes_per_s):
        found[rate.channel] = {"bytes_per_s": rate.bytes_per_s, "message_s": rate.message_s}
    return found


def batches(config: RunConfig) -> list[Batch]:
    """A random batch for each step."""
    train_, random = config.train, torch.Generator().manual_seed(0)
    shape = (train_.global_batch_size, train_.sequence_length + 1)
    return [
        next_token_batch(torch.randint(config.model.vocab_size, shape, generator=random))
        for _ in range(train_.steps)
    ]


def of_worker(told: Told) -> Seen:
    """What is printed of one worker's step."""
    return {
        "seconds": dict(told.seconds),
        "transfers_hidden": hidden_share(told.trace),
        "counts_wait_s": counts_wait_s(told.trace),
        "reads": told.reads,
        "reads_asked_for": told.asked,
        "peak_memory_bytes": told.peak_memory_bytes,
    }


def parity(make: MakeTransport, devices: Sequence[str], config: RunConfig, workers: int) -> Seen:
    """Training in layouts of at most `workers` workers against one process on the CPU."""
    cases = [Case(micro_batches=4, in_flight=4, transport="device")]
    if workers >= 4:
        cases.append(Case(micro_batches=4, attention=2, experts=2, in_flight=4, transport="device"))
    with closing(ProcessFleet(workers, make, devices)) as fleet:
        verdict = run_invariance(config, cases, lambda outcome: None, {"device": fleet})
    return verdict.as_json()


def problems(seen: Mapping[str, Any], *, gpus: int) -> list[str]:
    """Say what of `seen` is not as it should be; parts that are not there are not judged."""
    found = []
    if not seen.get("parity", {"ok": True})["ok"]:
        found.append("parity: training on the GPU differs from one process on the CPU")
    overlap = seen.get("overlap")
    if overlap is not None:
        if overlap["host_waits"]:
            found.append(f"overlap: the host has waited for the device: {overlap['host_waits']}")
        # ranks that share one GPU share its multiprocessors, too
        if gpus > 1 and overlap["hidden_share"] <= LEAST_HIDDEN:
            found.append(
                f"overlap: {overlap['hidden_share']:.0%} of transfers or products are hidden, "
                f"expected more than {LEAST_HIDDEN:.0%}"
            )
    for worker, step in seen.get("step", {}).items():
        reads, asked = step["reads"], step["reads_asked_for"]
        if reads > asked + END_READS:
            found.append(
                f"step: {worker} has waited for its device {reads} times; expected at most {asked} "
                f"in ops and {END_READS} at the end"
            )
        if asked and not reads:
            found.append(f"step: the profiler of {worker} sees no call of CUDA")
    return found
