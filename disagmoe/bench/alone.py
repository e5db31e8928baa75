"""Our reference as a whole training in one process, and what such trainings share."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from disagmoe.actors.startup import open_data
from disagmoe.bench.apart import Learned, Trainee
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import Batch
from disagmoe.model.init import initial_store
from disagmoe.model.partition import model_tensors
from disagmoe.model.precision import TYPES
from disagmoe.model.transformer import MicroBatch, reference_step
from disagmoe.optim.adamw import Optimizer
from disagmoe.optim.clip import clip_scale, squared_norm
from disagmoe.optim.lr import learning_rate

_CHUNK_TOKENS = 512
"""Logits of so many tokens at a time: they stay in the cache."""


@dataclass(frozen=True, slots=True)
class MakeReference:
    """Makes our one-process reference."""

    config: RunConfig

    def __call__(self) -> Trainee:
        return _Reference(self.config)


class _Reference:
    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._source = open_data(config)
        self._store = initial(config)
        self._optimizer = Optimizer(
            {
                name: value
                for local in model_tensors(config.model)
                for name, value in local.split(self._store[local.name]).items()
            },
            config.train.optimizer,
        )

    def step(self, step: int, micro_batch_size: int) -> Learned:
        train = self._config.train
        result = reference_step(
            self._store,
            self._config.model,
            [
                MicroBatch(part.tokens_BS, part.targets_BS)
                for part in cut(self._source.step(step), micro_batch_size)
            ],
            train.loss,
            chunk_tokens=_CHUNK_TOKENS,
        )
        norm = math.sqrt(squared_norm(result.grads))
        scale = clip_scale(norm, train.optimizer.clip_norm)
        self._optimizer.step(result.grads, learning_rate(step, train), scale)
        return Learned(result.loss.item(), norm)


def initial(config: RunConfig) -> dict[str, torch.Tensor]:
    """Return the weights that a run of `config` begins with, by local name."""
    return initial_store(
        model_tensors(config.model),
        seed=config.train.seed,
        std=config.model.init_std,
        dtype=TYPES[config.train.precision],
    )


def cut(batch: Batch, size: int) -> Iterator[Batch]:
    """Cut `batch` into micro-batches of `size` sequences; the last may be shorter."""
    parts = zip(batch.tokens_BS.split(size), batch.targets_BS.split(size), strict=True)
    return (Batch(tokens_BS, targets_BS) for tokens_BS, targets_BS in parts)
