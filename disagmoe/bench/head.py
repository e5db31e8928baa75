"""How much memory a step takes with a large vocabulary, beside what all its logits would take."""

import resource
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from disagmoe.calibrate.child import in_child
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.data.source import FixedSource
from disagmoe.runtime.memory import peak_memory_bytes
from disagmoe.runtime.threads import ThreadedRun

_TIMEOUT_S = 600.0
_HIDDEN = 64
_LOGIT_BYTES = 4  # fp32, in which the loss is computed


@dataclass(frozen=True, slots=True)
class HeadMemory:
    """What was measured, in a process of its own."""

    vocab_size: int
    tokens: int
    full_logits_bytes: int
    """Of all logits in fp32, once."""
    step_bytes: int
    """Largest memory during a step beyond what the process had before: logits, activations,
    gradients and everything else."""
    process_bytes: int
    """Largest memory of the whole process, weights and moments included."""
    chunk_tokens: int
    """0 is automatic."""

    @property
    def ok(self) -> bool:
        """Whether all logits have never been in memory."""
        return self.step_bytes < self.full_logits_bytes

    def as_json(self) -> dict[str, Any]:
        """The object that `disagmoe bench head --json` prints."""
        return asdict(self) | {"ok": self.ok}


def measure_head(vocab_size: int, tokens: int, *, chunk_tokens: int = 0) -> HeadMemory:
    """Train one step of a small network with a large vocabulary, on one sequence of `tokens`.

    Raises WorkerError where the process fails.
    """
    step_bytes, process_bytes = in_child(
        partial(_run, vocab_size, tokens, chunk_tokens),
        _TIMEOUT_S,
        late=f"a step has not ended within {_TIMEOUT_S:g} s",
        died="the process of the step has died; is memory short?",
    )
    full = vocab_size * tokens * _LOGIT_BYTES
    return HeadMemory(vocab_size, tokens, full, step_bytes, process_bytes, chunk_tokens)


def _run(vocab_size: int, tokens: int, chunk_tokens: int) -> tuple[int, int]:
    """Memory that the step adds, and that of the whole process, in bytes."""
    torch.set_num_threads(1)
    config = resolve(_config(vocab_size, tokens, chunk_tokens), cuda=False)
    ids = torch.arange(tokens)[None] % vocab_size
    run = ThreadedRun(config, FixedSource([Batch(ids, (ids + 1) % vocab_size)]), timeout_s=300.0)
    try:
        before = _resident_bytes()
        run.each(lambda runtime: runtime.run_step(0))
        peak = peak_memory_bytes(torch.device("cpu"))
    finally:
        run.close()
    return peak - before, peak


def _resident_bytes() -> int:
    """Memory of this process now (Linux, proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _config(vocab_size: int, tokens: int, chunk_tokens: int) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {
                "family": "qwen3_moe",
                "vocab_size": vocab_size,
                "hidden": _HIDDEN,
                "layers": 1,
                "heads": 2,
                "kv_heads": 1,
                "head_dim": 32,
                "experts": 4,
                "top_k": 2,
                "expert_width": 64,
            },
            "train": {
                "steps": 1,
                "global_batch_size": 1,
                "sequence_length": tokens,
                "precision": "fp32",
                "loss": {"chunk_tokens": chunk_tokens},
            },
            "data": {"paths": ["unused"]},
        }
    )
