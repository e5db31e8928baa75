"""Models whose ops are measured where no run config is named: two of each kind of machine, of
which one has more hidden width, longer sequences and more, narrower experts."""

from disagmoe.config.load import override
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER

_CPU = (
    ("hidden=256", "heads=4", "kv_heads=2", "head_dim=64", "experts=8", "top_k=2",
     "expert_width=512", "vocab_size=1024"),
    ("hidden=512", "heads=8", "kv_heads=2", "head_dim=64", "experts=16", "top_k=4",
     "expert_width=256", "vocab_size=4096"),
)  # fmt: skip
_CUDA = (
    ("hidden=2048", "heads=32", "kv_heads=4", "head_dim=128", "experts=16", "top_k=8",
     "expert_width=768", "vocab_size=32768"),
    ("hidden=4096", "heads=64", "kv_heads=4", "head_dim=128", "experts=8", "top_k=4",
     "expert_width=1536", "vocab_size=65536"),
)  # fmt: skip
_LENGTHS = {"cpu": (512, 1024), "cuda": (4096, 8192)}
SEQUENCES = (1, 2, 4)
"""Sequences of a micro-batch that each model is run with."""


def usual_shapes(device: str) -> list[RunConfig]:
    """Return run configs for `device`, `cpu` or `cuda`."""
    models = _CUDA if device == "cuda" else _CPU
    return [
        override(
            STARTER,
            [
                *(f"model.{setting}" for setting in model),
                "model.forced_balance=true",
                f"train.sequence_length={length}",
                "parallel.profile=off",
                "cluster.threads_per_worker=1",
                f"cluster.device={device}",
            ],
        )
        for model, length in zip(models, _LENGTHS[device], strict=True)
    ]
