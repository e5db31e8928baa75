"""A network so small that a step takes milliseconds, its layouts, and the reference for them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import IGNORED, Batch
from disagmoe.data.source import FixedSource
from disagmoe.model.init import initial_store
from disagmoe.model.partition import model_tensors
from disagmoe.model.transformer import MicroBatch, StepResult, reference_step
from disagmoe.runtime.context import Context
from disagmoe.runtime.invariance.reference import cut_batch, initial_balances
from disagmoe.runtime.recording import Recording
from disagmoe.runtime.report import StepReport
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.schedule.from_config import programs_for
from disagmoe.schedule.layout import Worker

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}

BASE = RunConfig.model_validate(
    {
        "model": {
            "family": "qwen3_moe",
            "vocab_size": 17,
            "hidden": 8,
            "layers": 2,
            "heads": 2,
            "kv_heads": 1,
            "head_dim": 4,
            "experts": 4,
            "top_k": 2,
            "expert_width": 8,
            "init_std": 0.3,
        },
        "parallel": {"micro_batch_size": 2},
        "train": {
            "steps": 300,
            "global_batch_size": 4,
            "sequence_length": 5,
            "precision": "fp64",
            "loss": {"aux_coef": 0.02, "z_coef": 0.01},
            "optimizer": {"lr": 1e-2},
            "lr_schedule": {"kind": "constant"},
        },
        "data": {"paths": ["unused"]},
    }
)


def tiny(**sets: object) -> RunConfig:
    """The base with settings changed, as `tiny(parallel__groups=2)`; resolved."""
    changes = [f"{key.replace('__', '.')}={_toml(value)}" for key, value in sets.items()]
    return resolve(override(BASE, changes), cuda=False)


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def batch_of(config: RunConfig, seed: int = 0) -> Batch:
    """A random batch in which about a fifth of all targets is ignored."""
    train = config.train
    shape = (train.global_batch_size, train.sequence_length)
    generator = torch.Generator().manual_seed(seed)
    tokens_BS = torch.randint(config.model.vocab_size, shape, generator=generator)
    targets_BS = torch.randint(config.model.vocab_size, shape, generator=generator)
    ignored = torch.rand(shape, generator=generator) < 0.2
    return Batch(tokens_BS, targets_BS.masked_fill(ignored, IGNORED))


def context_of(config: RunConfig, worker: str) -> Context:
    """What `worker` knows in a run of `config`."""
    spec = programs_for(config).spec
    return Context(config, spec, Worker.parse(worker), torch.device("cpu"))


def initial_values(config: RunConfig) -> dict[str, torch.Tensor]:
    """Local tensors of one process that holds the whole network."""
    return initial_store(
        model_tensors(config.model),
        seed=config.train.seed,
        std=config.model.init_std,
        dtype=DTYPES[config.train.precision],
    )


def reference(
    config: RunConfig, batch: Batch, store: Mapping[str, torch.Tensor] | None = None
) -> StepResult:
    """One process without transport; `store` other than the initial weights."""
    cut = [
        MicroBatch(part.tokens_BS, part.targets_BS, part.documents)
        for part in cut_batch(batch, config)
    ]
    balances = initial_balances(config, DTYPES[config.train.precision])
    store = {**balances, **(store or initial_values(config))}
    return reference_step(store, config.model, cut, config.train.loss)


@contextmanager
def threads(
    config: RunConfig,
    batches: Sequence[Batch],
    held_out: Sequence[Batch] = (),
    *,
    timeout_s: float = 20.0,
) -> Iterator[ThreadedRun]:
    """All workers of `config` as threads."""
    run = ThreadedRun(config, FixedSource(batches, held_out), timeout_s=timeout_s)
    try:
        yield run
    finally:
        run.close()


@dataclass(frozen=True, slots=True)
class Seen:
    """One step of all workers."""

    reports: dict[Worker, StepReport]
    grads: dict[Worker, dict[str, torch.Tensor]]
    """Summed gradients by worker and global name, before clipping."""
    values: dict[Worker, dict[str, torch.Tensor]]
    """Parameters after the update."""

    @property
    def report(self) -> StepReport:
        """What the first worker reports."""
        return next(iter(self.reports.values()))

    def all_grads(self) -> dict[str, torch.Tensor]:
        """Gradients by global name; replicas have been found equal in every bit."""
        out: dict[str, torch.Tensor] = {}
        for grads in self.grads.values():
            for name, grad in grads.items():
                assert torch.equal(out.setdefault(name, grad), grad), name
        return out


def step(run: ThreadedRun, number: int = 0) -> Seen:
    """Do one step under observation."""
    recordings: dict[Worker, Recording] = run.each(lambda runtime: runtime.record())
    reports = run.each(lambda runtime: runtime.run_step(number))
    return Seen(
        reports,
        {worker: recording.grads for worker, recording in recordings.items()},
        values_of(run),
    )


def values_of(run: ThreadedRun) -> dict[Worker, dict[str, torch.Tensor]]:
    """Copies of all parameters by worker and global name."""
    return {
        worker: {name: v.clone() for name, v in runtime.parameters.global_values().items()}
        for worker, runtime in run.workers.items()
    }


def one_step(config: RunConfig, batch: Batch | None = None) -> Seen:
    """The first step of a run of `config`."""
    with threads(config, [batch or batch_of(config)]) as run:
        return step(run)


def assert_equals_reference(seen: Seen, expected: StepResult, *, tolerance: float = 1e-10) -> None:
    """Losses, norm and every gradient, each relative to the reference."""
    grads = seen.all_grads()
    assert grads.keys() == expected.grads.keys()
    norm = torch.stack([grad.double().norm() for grad in expected.grads.values()]).norm().item()
    for name, grad in expected.grads.items():
        size = max(grad.double().norm().item(), 1e-6 * norm)
        assert (grads[name].double() - grad.double()).norm().item() <= tolerance * size, name
    for report in seen.reports.values():
        assert_close(report.loss, expected.loss.item(), tolerance)
        assert_close(report.balance, expected.balance.item(), tolerance)
        assert_close(report.z, expected.z.item(), tolerance)
        assert_close(report.grad_norm, norm, tolerance)
        assert report.skipped == ""


def assert_close(value: float, expected: float, tolerance: float) -> None:
    """Two numbers, relative to the second."""
    assert abs(value - expected) <= tolerance * max(abs(expected), 1e-6), (value, expected)


def force_router(run: ThreadedRun, store: dict[str, torch.Tensor], weight_ED: torch.Tensor) -> None:
    """Give all layers the router `weight_ED`, in the run and in the reference's `store`."""
    with torch.no_grad():
        for runtime in run.workers.values():
            for name, value in runtime.parameters.global_values().items():
                if name.endswith(".router.weight"):
                    value.copy_(weight_ED)
        for name, value in store.items():
            if name.endswith(".router.weight"):
                value.copy_(weight_ED)


def store_of(config: RunConfig, seen: Seen) -> dict[str, torch.Tensor]:
    """The parameters after a step, as one process would hold them."""
    by_name = {name: value for values in seen.values.values() for name, value in values.items()}
    return {local.name: local.join(by_name) for local in model_tensors(config.model)}


def assert_same_tensors(
    left: Mapping[Worker, Mapping[str, torch.Tensor]],
    right: Mapping[Worker, Mapping[str, torch.Tensor]],
) -> None:
    """Every bit of every tensor of every worker."""
    assert left.keys() == right.keys()
    for worker, tensors in left.items():
        assert tensors.keys() == right[worker].keys()
        for name, tensor in tensors.items():
            assert torch.equal(tensor, right[worker][name]), f"{worker} {name}"


def assert_same_bits(left: Seen, right: Seen) -> None:
    """Two steps of one division of the work; their workers may have other names."""
    for report in left.reports.values():
        for what in ("loss", "balance", "z", "grad_norm", "choices_LE", "skipped"):
            assert getattr(report, what) == getattr(right.report, what), what
    mine, theirs = left.all_grads(), right.all_grads()
    assert mine.keys() == theirs.keys()
    for name, grad in mine.items():
        assert torch.equal(grad, theirs[name]), name
    values = {name: value for store in right.values.values() for name, value in store.items()}
    for store in left.values.values():
        for name, value in store.items():
            assert torch.equal(value, values[name]), name
