"""What must hold between settings of a run; each rule is one function that yields its problems."""

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from disagmoe.config.balance_rules import BALANCE_RULES
from disagmoe.config.catalogue import join_words
from disagmoe.config.cluster_rules import CLUSTER_RULES
from disagmoe.config.costs import USUAL
from disagmoe.config.families import TRAITS
from disagmoe.config.hardware_rules import (
    colocated_machines_match,
    machines_are_known,
    slow_worker_is_there,
)
from disagmoe.config.hosts import hosts_are_those_of_the_cluster
from disagmoe.config.model_rules import MODEL_RULES
from disagmoe.config.parallel import COLOCATED, FIRST_PROFILED, PROFILED, micro_batches
from disagmoe.config.phrases import divisors, list_numbers, plural, span
from disagmoe.config.shares import apportion
from disagmoe.config.tomlwrite import format_value

if TYPE_CHECKING:  # run.py uses these rules
    from disagmoe.config.run import RunConfig

Rule = Callable[["RunConfig"], Iterator[str]]


def problems(config: "RunConfig") -> list[str]:
    """Return everything that is wrong between the settings of `config`; [] when it can run."""
    return [problem for rule in RULES for problem in rule(config)]


def warnings(config: "RunConfig") -> list[str]:
    """Return what runs but is hardly meant."""
    return [warning for rule in CAUTIONS for warning in rule(config)]


def name_is_a_folder(config: "RunConfig") -> Iterator[str]:
    """`name` consists of letters, digits, `.`, `_` and `-` and starts with a letter or digit."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", config.name):
        yield (
            f"name = {format_value(config.name)}; use letters, digits, '.', '_' and '-', starting "
            "with a letter or digit: it names the run directory"
        )


def groups_own_layers(config: "RunConfig") -> Iterator[str]:
    """`parallel.groups` is at most `model.layers`, less `model.dense_layers`."""
    groups, layers = config.parallel.groups, _ring_layers(config)
    if groups > layers > 0:
        less = " - model.dense_layers" if config.model.dense_layers else ""
        yield (
            f"parallel.groups = {groups} is more than model.layers{less} = {layers}, so some "
            f"groups would own no layer; use {span(1, layers)}"
        )


def _ring_layers(config: "RunConfig") -> int:
    """Layers with experts, also of a config that is only partly legal."""
    return config.model.layers - config.model.dense_layers


def expert_workers_own_experts(config: "RunConfig") -> Iterator[str]:
    """`parallel.expert_workers` is at most `model.experts`."""
    workers, experts = config.parallel.expert_workers, config.model.experts
    if workers > experts:
        yield (
            f"parallel.expert_workers = {workers} is more than model.experts = {experts}, so some "
            f"workers would hold no expert; use {span(1, experts)}"
        )


def shares_fit_workers(config: "RunConfig") -> Iterator[str]:
    """`parallel.attention_shares` is empty or holds one number > 0 for each of
    `parallel.attention_workers`, and `parallel.expert_shares` for each of
    `parallel.expert_workers`."""
    parallel = config.parallel
    yield from _share_problems("attention", parallel.attention_shares, parallel.attention_workers)
    yield from _share_problems("expert", parallel.expert_shares, parallel.expert_workers)


def _share_problems(side: str, shares: list[float], workers: int) -> Iterator[str]:
    if shares and len(shares) != workers:
        yield (
            f"parallel.{side}_shares has {plural(len(shares), 'number')} for "
            f"parallel.{side}_workers = {workers}; give one number per worker, or [] for equal "
            "shares"
        )
    for index, share in enumerate(shares):
        if share <= 0:
            yield f"parallel.{side}_shares[{index}] = {format_value(share)}; expected a number > 0"


def shares_leave_experts(config: "RunConfig") -> Iterator[str]:
    """`parallel.expert_shares` give each expert worker at least one of `model.experts`."""
    shares, experts = config.parallel.expert_shares, config.model.experts
    if any(_share_problems("expert", shares, config.parallel.expert_workers)):
        return
    parts = apportion(experts, shares) if shares else []
    if 0 in parts and len(parts) <= experts:
        yield (
            f"parallel.expert_shares = {format_value(shares)} divides model.experts = {experts} "
            f"into {format_value(parts)}, so some workers would hold no expert; use less unequal "
            "shares, or fewer parallel.expert_workers"
        )


def colocated_workers_match(config: "RunConfig") -> Iterator[str]:
    """`parallel.attention_workers` equals `parallel.expert_workers` in a colocated schedule."""
    parallel = config.parallel
    attention, experts = parallel.attention_workers, parallel.expert_workers
    if parallel.schedule in COLOCATED and attention != experts:
        yield (
            f'parallel.schedule = "{parallel.schedule}" puts attention and experts on the same '
            f"workers, but attention_workers = {attention} and expert_workers = {experts}; "
            'use equal numbers, or schedule "af_pipe"'
        )


def residual_fits_ring(config: "RunConfig") -> Iterator[str]:
    """`parallel.residual` is not `local` with several groups, and neither `direct` nor `fused` with
    one."""
    residual, groups = config.parallel.residual, config.parallel.groups
    if residual == "local" and groups > 1:
        yield (
            f'parallel.residual = "local" keeps the residual stream on one worker, but '
            f"parallel.groups = {groups} moves it on after every layer; "
            'use "auto", "direct" or "fused"'
        )
    if residual in ("direct", "fused") and groups == 1:
        yield (
            f'parallel.residual = "{residual}" sends the residual stream to the next group, but '
            'parallel.groups = 1 has no other group; use "auto" or "local"'
        )


def shared_experts_have_a_way(config: "RunConfig") -> Iterator[str]:
    """`parallel.shared_experts` is `attention` without `model.shared_width`, and `expert` with a
    `fused` `parallel.residual`."""
    parallel, width = config.parallel, config.model.shared_width
    if parallel.shared_experts == "expert" and not width:
        yield (
            'parallel.shared_experts = "expert", but model.shared_width = 0 has no shared experts; '
            'use "attention"'
        )
    if parallel.residual == "fused" and width and parallel.shared_experts == "attention":
        yield (
            'parallel.residual = "fused" sends the residual stream on before the shared experts of '
            'the attention workers are added to it; use "auto" or "direct", or '
            'parallel.shared_experts = "expert"'
        )


def biases_balance_their_families(config: "RunConfig") -> Iterator[str]:
    """`train.loss.bias_rate` is 0 for families without a bias for the choice of experts."""
    own, rate = TRAITS.get(config.model.family), config.train.loss.bias_rate
    if rate and own is not None and not own.balance_bias:
        families = [format_value(name) for name, other in TRAITS.items() if other.balance_bias]
        yield (
            f"train.loss.bias_rate = {rate:g}, but the routers of model.family = "
            f"{format_value(config.model.family)} have no bias for the choice; use 0, or family "
            f"{join_words(families)}"
        )


def tied_embeddings_meet(config: "RunConfig") -> Iterator[str]:
    """With `model.tied_embeddings`, `parallel.groups` divides `model.layers` (less
    `model.dense_layers`), so that embedding and
    LM head live in the same group."""
    groups, layers = config.parallel.groups, _ring_layers(config)
    if config.model.tied_embeddings and groups <= layers and layers % groups:
        yield (
            f"model.tied_embeddings = true needs embedding and LM head in one group, but with "
            f"model.layers = {layers} and parallel.groups = {groups} they live in groups 0 and "
            f"{layers % groups}; use parallel.groups = {list_numbers(divisors(layers))}, "
            "or tied_embeddings = false"
        )


def micro_batch_fits_batch(config: "RunConfig") -> Iterator[str]:
    """`parallel.micro_batch_size` is at most `train.global_batch_size`."""
    size, batch = config.parallel.micro_batch_size, config.train.global_batch_size
    if size > batch:
        yield (
            f"parallel.micro_batch_size = {size} is more than train.global_batch_size = {batch}; "
            f"use {span(1, batch)}"
        )


def rings_share_batch(config: "RunConfig") -> Iterator[str]:
    """`parallel.rings` is at most `train.global_batch_size`."""
    rings, batch = config.parallel.rings, config.train.global_batch_size
    if rings > batch:
        yield (
            f"parallel.rings = {rings} is more than train.global_batch_size = {batch}, so some "
            f"rings would train on nothing; use {span(1, batch)}"
        )


def in_flight_fits_step(config: "RunConfig") -> Iterator[str]:
    """`parallel.in_flight` is at most the number of micro-batches of a step, and 0 or 1 where the
    schedule runs one after the other (`serial`, and `ep_1f1b` with one group)."""
    in_flight = config.parallel.in_flight
    if config.parallel.one_by_one:
        if in_flight > 1:
            schedule = config.parallel.schedule
            other = "af_pipe" if schedule == "serial" else "ep_overlap"
            yield (
                f'parallel.in_flight = {in_flight}, but parallel.schedule = "{schedule}" runs one '
                f'micro-batch after the other; use 0 or 1, or schedule "{other}"'
            )
        return
    size, batch = config.parallel.micro_batch_size, config.train.global_batch_size
    rings = config.parallel.rings
    count = micro_batches(batch, size, rings)
    if in_flight > count:
        yield (
            f"parallel.in_flight = {in_flight} is more than the {plural(count, 'micro-batch')} of "
            f"a step (train.global_batch_size = {batch}, parallel.micro_batch_size = {size}"
            f"{f', parallel.rings = {rings}' if rings > 1 else ''}); "
            f"use {span(1, count)}, or 0 for automatic"
        )


def depth_keeps_its_limit(config: "RunConfig") -> Iterator[str]:
    """`parallel.in_flight` is at most `parallel.max_in_flight`, which is not 1 for the schedule
    `ep_overlap`, since that works on pairs."""
    depth, most = config.parallel.in_flight, config.parallel.max_in_flight
    if 0 < most < depth:
        yield (
            f"parallel.in_flight = {depth} is more than parallel.max_in_flight = {most}; "
            f"use {span(1, most)}, or 0 for automatic"
        )
    if most == 1 and config.parallel.schedule == "ep_overlap" and config.micro_batches > 1:
        yield (
            'parallel.max_in_flight = 1, but parallel.schedule = "ep_overlap" works on pairs of '
            "micro-batches; use 2 or more, or 0 for no limit"
        )


def overlap_has_a_pair(config: "RunConfig") -> Iterator[str]:
    """`parallel.in_flight` is not 1 for the schedule `ep_overlap`, unless a step has one
    micro-batch only."""
    parallel = config.parallel
    if parallel.schedule == "ep_overlap" and parallel.in_flight == 1 and config.micro_batches > 1:
        yield (
            'parallel.in_flight = 1, but parallel.schedule = "ep_overlap" hides the all-to-all of '
            "one micro-batch behind the compute of another; "
            f"use {span(2, config.micro_batches)}, or 0 for automatic"
        )


def profile_has_something_to_find(config: "RunConfig") -> Iterator[str]:
    """`parallel.profile` is not `on` where `parallel.costs` are given, nor where `train.steps`
    leaves no step after it."""
    parallel, steps = config.parallel, config.train.steps
    if parallel.profile != "on":
        return
    if parallel.costs != USUAL:
        yield (
            'parallel.profile = "on" measures the costs, but parallel.costs are given; use '
            '"auto" or "off", or leave parallel.costs out'
        )
    least = FIRST_PROFILED + PROFILED + 1
    if steps < least:
        yield (
            f'parallel.profile = "on" measures until step {least - 1}, but train.steps = {steps}; '
            f'use {least} or more steps, or profile = "off"'
        )


def decay_is_for_wsd(config: "RunConfig") -> Iterator[str]:
    """`train.lr_schedule.decay_steps` is at least 1 for the kind `wsd` and 0 for all others."""
    kind, decay = config.train.lr_schedule.kind, config.train.lr_schedule.decay_steps
    if kind == "wsd" and decay < 1:
        yield (
            f'train.lr_schedule.decay_steps = {decay}, but kind = "wsd" ends with a fall; '
            "use an integer >= 1"
        )
    if kind != "wsd" and decay > 0:
        yield (
            f"train.lr_schedule.decay_steps = {decay} has no effect with kind = "
            f'{format_value(kind)}; use 0, or kind = "wsd"'
        )


def learning_rate_fits_run(config: "RunConfig") -> Iterator[str]:
    """`train.lr_schedule.warmup_steps` and `decay_steps` together are at most `train.steps`."""
    steps, schedule = config.train.steps, config.train.lr_schedule
    warmup, decay = schedule.warmup_steps, schedule.decay_steps
    if warmup > steps:
        yield (
            f"train.lr_schedule.warmup_steps = {warmup} is more than train.steps = {steps}; "
            f"use {span(0, steps)}"
        )
    elif schedule.kind == "wsd" and warmup == steps:
        yield (
            f"train.lr_schedule.warmup_steps = {warmup} leaves no step of train.steps = {steps} "
            f'for the fall of kind = "wsd"; use {span(0, steps - 1)}'
        )
    elif schedule.kind == "wsd" and warmup + decay > steps:
        yield (
            f"train.lr_schedule.warmup_steps = {warmup} and decay_steps = {decay} together are "
            f"more than train.steps = {steps}; with this warm-up use decay_steps = "
            f"{span(1, steps - warmup)}"
        )


def groups_have_rules(config: "RunConfig") -> Iterator[str]:
    """`train.optimizer.group_lr` and `train.optimizer.group_weight_decay` are empty or hold one
    number >= 0 for each of `train.optimizer.groups`, and one of them is not empty."""
    optimizer = config.train.optimizer
    groups, lists = optimizer.groups, ("group_lr", "group_weight_decay")
    for name in lists:
        numbers = getattr(optimizer, name)
        if numbers and len(numbers) != len(groups):
            yield (
                f"train.optimizer.{name} has {plural(len(numbers), 'number')} for "
                f"{plural(len(groups), 'pattern')} in train.optimizer.groups; give one number per "
                "pattern, or []"
            )
        for index, number in enumerate(numbers):
            if number < 0:
                yield (
                    f"train.optimizer.{name}[{index}] = {format_value(number)}; expected a number "
                    ">= 0"
                )
    if groups and not any(getattr(optimizer, name) for name in lists):
        yield (
            "train.optimizer.groups has no effect without group_lr or group_weight_decay; give one "
            "of them, or []"
        )


def paths_are_named(config: "RunConfig") -> Iterator[str]:
    """No path in `data.paths` is empty."""
    for index, path in enumerate(config.data.paths):
        if not path.strip():
            yield f"data.paths[{index}] is empty; expected a directory of `disagmoe data prepare`"


def weights_fit_paths(config: "RunConfig") -> Iterator[str]:
    """`data.weights` is empty or holds one number > 0 for each of `data.paths`."""
    weights, paths = config.data.weights, config.data.paths
    if weights and len(weights) != len(paths):
        yield (
            f"data.weights has {plural(len(weights), 'number')} for "
            f"{plural(len(paths), 'path')} in data.paths; give one number per path, "
            "or [] for shares in proportion to size"
        )
    for index, weight in enumerate(weights):
        if weight <= 0:
            yield (
                f"data.weights[{index}] = {format_value(weight)}; expected a number > 0 "
                "(leave out a path that gives nothing)"
            )


def attention_workers_have_sequences(config: "RunConfig") -> Iterator[str]:
    """Fewer sequences per micro-batch than attention workers in a group, and very unequal
    `parallel.attention_shares`, leave workers idle."""
    parallel = config.parallel
    workers, size = parallel.attention_workers, parallel.micro_batch_size
    idle = apportion(size, parallel.attention_weights).count(0)
    if idle:
        shares = parallel.attention_shares
        why = f" and attention_shares = {format_value(shares)}" if shares else ""
        yield (
            f"{idle} of {workers} attention workers per group "
            f"({100 * idle / workers:.0f} %) {'is' if idle == 1 else 'are'} idle, because "
            f"parallel.micro_batch_size = {size}{why}; use {workers} or more sequences per "
            f"micro-batch, or parallel.attention_workers = {workers - idle}"
        )


def router_learns(config: "RunConfig") -> Iterator[str]:
    """With `model.top_k` 1 and `norm_topk_prob` all gate weights are 1, so that the router learns
    from the balancing losses only."""
    if config.model.top_k == 1 and config.model.norm_topk_prob:
        yield (
            "model.top_k = 1 with norm_topk_prob = true makes every gate weight 1, so the router "
            "gets no gradient from the cross-entropy; use norm_topk_prob = false or top_k >= 2"
        )


def metrics_ports_exist(config: "RunConfig") -> Iterator[str]:
    """`metrics.port_base` is 0, or from 1024 on with a port left for each worker."""
    base, workers = config.metrics.port_base, config.parallel.workers
    last = 65535 - workers
    if base and not 1024 <= base <= last:
        yield (
            f"metrics.port_base = {base} gives the driver and {workers} workers no ports; use 0, "
            f"or 1024 to {last}"
        )


def mfu_knows_both_peaks(config: "RunConfig") -> Iterator[str]:
    """`metrics.attention_peak_flops` and `expert_peak_flops` are given together, unless
    `parallel.schedule` has both sides on the same workers: then the first alone."""
    metrics, schedule = config.metrics, config.parallel.schedule
    if schedule in COLOCATED:
        if metrics.expert_peak_flops > 0:
            yield (
                "metrics.expert_peak_flops has no effect with parallel.schedule = "
                f"{format_value(schedule)}, whose workers have attention and experts; use 0 and "
                "metrics.attention_peak_flops"
            )
    elif (metrics.attention_peak_flops > 0) != (metrics.expert_peak_flops > 0):
        yield (
            "metrics.attention_peak_flops and metrics.expert_peak_flops are given together: MFU is "
            "measured against the peaks of both sides; give the other one as well, or neither"
        )


RULES: tuple[Rule, ...] = (
    name_is_a_folder,
    *MODEL_RULES,
    groups_own_layers,
    expert_workers_own_experts,
    shares_fit_workers,
    shares_leave_experts,
    colocated_workers_match,
    residual_fits_ring,
    shared_experts_have_a_way,
    biases_balance_their_families,
    tied_embeddings_meet,
    micro_batch_fits_batch,
    rings_share_batch,
    in_flight_fits_step,
    overlap_has_a_pair,
    depth_keeps_its_limit,
    *BALANCE_RULES,
    profile_has_something_to_find,
    decay_is_for_wsd,
    learning_rate_fits_run,
    groups_have_rules,
    paths_are_named,
    weights_fit_paths,
    metrics_ports_exist,
    mfu_knows_both_peaks,
    *CLUSTER_RULES,
    machines_are_known,
    colocated_machines_match,
    slow_worker_is_there,
    hosts_are_those_of_the_cluster,
)
CAUTIONS: tuple[Rule, ...] = (attention_workers_have_sequences, router_learns)
