"""NCCL on the GPUs of this machine, by plain processes: parity of training with one process, rates
of channels, overlap of transfers with compute, and that a step stops the host at few places.

    python scripts/test_gpu.py

Prints one JSON object. With one GPU two ranks share it, which NCCL 2.32 and later can be told to
allow; with an older one a single rank sends to itself, and training goes through host memory. Exit
codes: 0 all is well, 1 something is not, 2 there is no GPU or no library.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from disagmoe.bench.gpucheck import parity, problems, with_peers
from disagmoe.bench.gpuself import send_to_oneself
from disagmoe.config.load import load_run_config
from disagmoe.config.resolve import resolve
from disagmoe.errors import DisagMoEError, TransportError
from disagmoe.runtime.invariance.fleet import over_gloo
from disagmoe.transport.base import Transport
from disagmoe.transport.nccl import NcclTransport
from disagmoe.transport.nccl_library import Nccl, load_nccl
from disagmoe.transport.rendezvous import connect
from disagmoe.transport.staged import StagedTransport
from disagmoe.transport.streams import CudaStreams, no_device

ROOT = Path(__file__).parents[1]
SHARES_A_GPU = (2, 32)
"""First NCCL that can be told to let ranks share a GPU."""


def over_nccl(worker: str, store: tuple[str, int], epoch: int, timeout_s: float) -> Transport:
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


def over_host(worker: str, store: tuple[str, int], epoch: int, timeout_s: float) -> Transport:
    """Gloo, through host memory."""
    device = torch.device("cuda", torch.cuda.current_device())
    return StagedTransport(over_gloo(worker, store, epoch, timeout_s), device)


def examine(seen: dict[str, Any], nccl: Nccl, devices: list[str]) -> None:
    """Put into `seen` what is found, part by part."""
    config = resolve(
        load_run_config(ROOT / "configs" / "bench" / "gpu.toml"), cuda=True, own_gpus=True
    )
    tiny, make = load_run_config(ROOT / "configs" / "tiny.toml"), over_nccl
    alone = len(devices) == 1 and nccl.version < SHARES_A_GPU
    if not alone:
        try:
            for part, found in with_peers(over_nccl, devices, config):
                seen[part] = found
        except DisagMoEError as error:
            if len(devices) > 1 or "channels" in seen:
                raise
            alone, seen["not_shared"] = True, str(error)
    if alone:
        make = over_host
        seen["to_oneself"] = send_to_oneself(nccl, CudaStreams(torch.device(devices[0])))
    seen["parity"] = parity(make, devices, tiny, max(2, len(devices)))


def main() -> int:
    """Run everything; see the head of this file."""
    began_s = time.monotonic()
    if not torch.cuda.is_available():
        _say({"ok": False, "reason": no_device(torch.device("cuda"))})
        return 2
    devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    if len(devices) == 1:
        os.environ.setdefault("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    try:
        nccl = load_nccl()
    except TransportError as error:
        _say({"ok": False, "reason": str(error)})
        return 2
    seen: dict[str, Any] = {
        "gpus": [torch.cuda.get_device_name(device) for device in devices],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": list(nccl.version),
    }
    reasons = []
    try:
        examine(seen, nccl, devices)
    except DisagMoEError as error:
        reasons.append(str(error))
    reasons += problems(seen, gpus=len(devices))
    _say({"ok": not reasons, "reasons": reasons, **seen, "elapsed_s": time.monotonic() - began_s})
    return 1 if reasons else 0


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    sys.exit(main())
