"""Hugging Face Transformers as a whole training in one process: the same model, data, learning
rates and clipping as ours."""

from dataclasses import dataclass
from typing import Any

import torch

from disagmoe.actors.startup import open_data
from disagmoe.bench.alone import cut, initial
from disagmoe.bench.apart import Learned, Trainee
from disagmoe.bench.hf_model import hf_model, load_into_hf
from disagmoe.config.run import RunConfig
from disagmoe.data.batch import count_valid
from disagmoe.hf.tensors import hf_tensors
from disagmoe.model.precision import TYPES
from disagmoe.optim.adamw import decays
from disagmoe.optim.lr import learning_rate


@dataclass(frozen=True, slots=True)
class MakeTransformers:
    """Makes a training with Transformers; `experts` is its `experts_implementation`."""

    config: RunConfig
    experts: str

    def __call__(self) -> Trainee:
        return _Transformers(self.config, self.experts)


class _Transformers:
    """Weights, gradients and moments have the type of the run, as in a model that was loaded with
    it; there are no fp32 copies, which our side keeps for bf16."""

    def __init__(self, config: RunConfig, experts: str) -> None:
        self._config = config
        self._source = open_data(config)
        self._model: Any = hf_model(config.model, attention="sdpa", experts=experts)
        self._model.train()
        for parameter in self._model.parameters():
            # not model.to(), which would round the frequencies of the rotary embedding as well
            parameter.data = parameter.data.to(TYPES[config.train.precision])
        load_into_hf(self._model, initial(config), config.model)
        parameters = dict(self._model.named_parameters())
        settings = config.train.optimizer
        groups: dict[bool, list[torch.Tensor]] = {True: [], False: []}
        for tensor in hf_tensors(config.model, "fused"):
            parameter = parameters[tensor.name]
            groups[decays(tensor.pieces[0].name, parameter.ndim)].append(parameter)
        self._adamw = torch.optim.AdamW(
            [
                {"params": members, "weight_decay": settings.weight_decay if decaying else 0.0}
                for decaying, members in groups.items()
            ],
            lr=settings.lr,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            fused=True,
        )

    def step(self, step: int, micro_batch_size: int) -> Learned:
        batch, train = self._source.step(step), self._config.train
        valid = count_valid(batch.targets_BS)
        total = 0.0
        for part in cut(batch, micro_batch_size):
            # its own loss, told that our targets are those of the same position
            loss = self._model(
                input_ids=part.tokens_BS,
                labels=part.targets_BS,
                shift_labels=part.targets_BS,
                num_items_in_batch=valid,
            ).loss
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(
            self._model.parameters(), train.optimizer.clip_norm or float("inf"), foreach=True
        )
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate(step, train)
        self._adamw.step()
        self._adamw.zero_grad()
        return Learned(total, norm.item())


def gathered_bytes(config: RunConfig) -> int:
    """Return the memory that `batched_mm` takes for a micro-batch of one sequence: the matrices of
    every choice of every layer, and the gradients of one layer's."""
    model = config.model
    choice = 3 * model.hidden * model.expert_width * TYPES[config.train.precision].itemsize
    return (model.layers + 1) * config.train.sequence_length * model.top_k * choice
