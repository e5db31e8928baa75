"""NCCL on the GPUs of this machine, by plain processes: parity with one process, bandwidth, overlap
of transfers with compute, and that posting a transfer never stops the host.

    python scripts/test_gpu.py

Prints one JSON object. With one GPU two ranks share it, which NCCL 2.32 and later can be told to
allow. Exit codes: 0 all is well, 1 something is not, 2 there is no GPU or no library.
"""

import json
import multiprocessing
import os
import sys
import time
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from disagmoe.config.load import load_run_config
from disagmoe.errors import DisagMoEError
from disagmoe.runtime.invariance.fleet import ProcessFleet, over_gloo
from disagmoe.runtime.invariance.layouts import Case
from disagmoe.runtime.invariance.run import run_invariance
from disagmoe.transport.base import ChannelSpec, TransportChannel, Work
from disagmoe.transport.nccl import NcclTransport
from disagmoe.transport.nccl_library import load_nccl
from disagmoe.transport.rendezvous import StoreServer, connect
from disagmoe.transport.streams import CudaStreams, no_device
from disagmoe.units import MIB

ROOT = Path(__file__).parents[1]
PAIR = ChannelSpec("A0>F0.act", ("A0.0",), ("F0.0",))
CONTROL = ChannelSpec("world", ("A0.0", "F0.0"), ("A0.0", "F0.0"), on_host=True)
TRANSFERS = 20
LEAST_HIDDEN = 0.5
"""Share of the shorter of transfers and products that goes on behind the longer."""


def over_nccl(worker: str, store: tuple[str, int], epoch: int, timeout_s: float) -> NcclTransport:
    """The real library on this process's current device."""
    return NcclTransport(
        worker,
        connect(*store, timeout_s),
        over_gloo(worker, store, epoch, timeout_s),
        CudaStreams(torch.device("cuda", torch.cuda.current_device())),
        load_nccl(),
        epoch=epoch,
        timeout_s=timeout_s,
        start_timeout_s=timeout_s,
    )


def parity(devices: list[str]) -> dict[str, Any]:
    """Training over NCCL against one process on the CPU."""
    most = max(2, len(devices))
    cases = [Case(micro_batches=4, in_flight=4, transport="nccl")]
    if most >= 4:
        cases.append(Case(micro_batches=4, attention=2, experts=2, in_flight=4, transport="nccl"))
    config = load_run_config(ROOT / "configs" / "tiny.toml", ())
    with closing(ProcessFleet(most, over_nccl, devices)) as fleet:
        verdict = run_invariance(config, cases, lambda outcome: None, {"nccl": fleet})
    return verdict.as_json()


def measured(devices: list[str]) -> dict[str, Any]:
    """What two workers find out about the channel between them: `bytes_per_s` by size of message,
    and `overlap` of transfers with products. Empty where they fail."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    with closing(StoreServer("127.0.0.1")) as server:
        processes = [
            context.Process(
                target=_measure,
                args=(name, devices[rank % len(devices)], (server.host, server.port), there),
            )
            for rank, name in enumerate(PAIR.members)
        ]
        for process in processes:
            process.start()
        found: dict[str, Any] = here.recv() if here.poll(120) else {}
        for process in processes:
            process.join(30)
            process.kill()
    return found


def _measure(name: str, device: str, store: tuple[str, int], report: Connection) -> None:
    torch.cuda.set_device(device)
    transport = over_nccl(name, store, 10**6, 60.0)
    channel = transport.open([PAIR, CONTROL])[PAIR.name]
    found = {"bytes_per_s": _bandwidth(name, device, channel)}
    found["overlap"] = _overlap(name, device, channel)
    if name == "F0.0":
        report.send(found)
    transport.close()


def _transfer(name: str, channel: TransportChannel, buffer: torch.Tensor, label: str) -> Work:
    sends, recvs = ({"F0.0": buffer}, {}) if name == "A0.0" else ({}, {"A0.0": buffer})
    return channel.post(sends, recvs, label)


def _bandwidth(name: str, device: str, channel: TransportChannel) -> dict[str, float]:
    found = {}
    for nbytes in (MIB // 16, MIB, 16 * MIB, 128 * MIB):
        buffer = torch.zeros(nbytes, dtype=torch.uint8, device=device)
        for timed in (False, True):
            begin_s = time.perf_counter()
            for number in range(TRANSFERS):
                _transfer(name, channel, buffer, f"m{number}").wait()
            torch.cuda.synchronize()
            if timed:
                found[str(nbytes)] = TRANSFERS * nbytes / (time.perf_counter() - begin_s)
    return found


def _overlap(name: str, device: str, channel: TransportChannel) -> dict[str, Any]:
    """Transfers and products one after the other, and at once; torch raises where the host would
    wait for the device in between."""
    buffer = torch.zeros(128 * MIB, dtype=torch.uint8, device=device)
    square = torch.randn(4096, 4096, dtype=torch.bfloat16, device=device)

    def products(count: int) -> None:
        for _ in range(count):
            torch.mm(square, square, out=product)

    def transfers() -> list[Work]:
        return [_transfer(name, channel, buffer, f"m{number}") for number in range(TRANSFERS)]

    def together() -> None:
        works = transfers()
        products(TRANSFERS)
        for work in works:
            work.wait()

    def alone() -> None:
        for work in transfers():
            work.wait()

    product = torch.empty_like(square)
    seconds: dict[str, float] = {}
    host_waits = ""
    rounds = {"transfer": alone, "compute": lambda: products(TRANSFERS), "both": together}
    for key, what in (*rounds.items(), *rounds.items()):  # the first round warms up
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        torch.cuda.set_sync_debug_mode("error")
        try:
            what()
        except RuntimeError as error:
            host_waits = str(error)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        seconds[key] = time.perf_counter() - begin_s
    transfer_s, compute_s, both_s = seconds["transfer"], seconds["compute"], seconds["both"]
    hidden = (transfer_s + compute_s - both_s) / min(transfer_s, compute_s)
    return {
        "transfer_s": transfer_s,
        "compute_s": compute_s,
        "both_s": both_s,
        "hidden_share": hidden,
        "host_waits": host_waits,
    }


def main() -> int:
    """Run everything; see the head of this file."""
    if not torch.cuda.is_available():
        _say({"ok": False, "reason": no_device(torch.device("cuda"))})
        return 2
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if len(devices) == 1:
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    try:
        version = load_nccl().version
        seen: dict[str, Any] = {
            "gpus": [torch.cuda.get_device_name(device) for device in devices],
            "torch": torch.__version__,
            "nccl": list(version),
            "parity": parity(devices),
            **measured(devices),
        }
    except DisagMoEError as error:
        _say({"ok": False, "reason": str(error)})
        return 1
    overlap = seen.get("overlap", {"host_waits": "no measurement", "hidden_share": 0.0})
    # ranks that share one GPU share its multiprocessors, too
    hides = overlap["hidden_share"] > LEAST_HIDDEN or len(devices) == 1
    ok = bool(seen["parity"]["ok"]) and not overlap["host_waits"] and hides
    _say({"ok": ok, **seen})
    return 0 if ok else 1


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    sys.exit(main())
