"""Which learning rate and weight decay a parameter has."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from disagmoe.config.model import ModelConfig
from disagmoe.config.train import OptimizerConfig
from disagmoe.errors import ConfigError
from disagmoe.model.names import global_shapes
from disagmoe.model.partition import LocalTensor, model_tensors
from disagmoe.optim.adamw import Rule, decays


def rule_of(name: str, ndim: int, config: OptimizerConfig) -> Rule:
    """Return the rule of a parameter by its global name and its number of dimensions."""
    usual = config.weight_decay if decays(name, ndim) else 0.0
    place = _place(name, config.groups)
    if place is None:
        return Rule(1.0, usual)
    return Rule(
        config.group_lr[place] if config.group_lr else 1.0,
        config.group_weight_decay[place] if config.group_weight_decay else usual,
    )


def rule_of_tensor(local: LocalTensor, config: OptimizerConfig) -> Rule:
    """Return the rule of all parameters in a local tensor, which `check_groups` has found equal."""
    part = local.parts[0]
    return rule_of(part.name, len(part.shape), config)


def check_groups(model: ModelConfig, config: OptimizerConfig) -> None:
    """Raise ConfigError where a group fits no parameter of `model` or only some of those that are
    updated as one."""
    if not config.groups:
        return
    found = {_place(name, config.groups) for name in global_shapes(model)}
    problems = [
        f'train.optimizer.groups[{place}] = "{pattern}" fits no parameter that an earlier one '
        "does not; `disagmoe checkpoint show` and the README tell how parameters are called"
        for place, pattern in enumerate(config.groups)
        if place not in found
    ]
    for local in model_tensors(model):
        places = {_place(part.name, config.groups) for part in local.parts}
        if len(places) > 1:
            first, *_, last = (part.name for part in local.parts)
            problems.append(
                f"train.optimizer.groups: {first} to {last} are updated as one, but groups fit "
                "only some of them; use patterns such as layers.*.experts.*"
            )
            break
    if problems:
        raise ConfigError(problems)


def _place(name: str, patterns: Sequence[str]) -> int | None:
    for place, pattern in enumerate(patterns):
        if fnmatchcase(name, pattern):
            return place
    return None
