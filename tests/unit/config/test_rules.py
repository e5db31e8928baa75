"""Rules between settings, each by its message, and the legal neighbours of what they refuse."""

import pytest

from disagmoe.config.cluster_rules import CLUSTER_RULES
from disagmoe.config.load import override
from disagmoe.config.model_rules import MODEL_RULES
from disagmoe.config.rules import RULES, problems, warnings
from disagmoe.config.run import RunConfig
from disagmoe.config.starter import STARTER
from disagmoe.config.tomlread import apply_set
from disagmoe.errors import ConfigError

GLOBAL = ["train.loss.aux_scope=global", "train.loss.aux_coef=0.1"]
WSD = ["train.lr_schedule.kind=wsd", "train.lr_schedule.decay_steps=10"]

REFUSED = [
    (
        ["name=a/b"],
        """name = "a/b"; use letters, digits, '.', '_' and '-', starting with a letter or digit: """
        "it names the run directory",
    ),
    (
        ["parallel.workers_per_host=2"],
        'parallel.workers_per_host = 2 has no effect with parallel.dedupe = "rank"; use 0, or '
        'dedupe = "node"',
    ),
    (
        ["parallel.groups=5"],
        "parallel.groups = 5 is more than model.layers = 4, so some groups would own no layer; "
        "use 1 to 4",
    ),
    (
        [
            "model.family=deepseek",
            "model.dense_layers=1",
            "model.dense_width=8",
            "parallel.groups=4",
        ],
        "parallel.groups = 4 is more than model.layers - model.dense_layers = 3, so some groups "
        "would own no layer; use 1 to 3",
    ),
    (
        ["parallel.expert_workers=9"],
        "parallel.expert_workers = 9 is more than model.experts = 8, so some workers would hold "
        "no expert; use 1 to 8",
    ),
    (
        ["parallel.groups=2", "parallel.residual=local"],
        'parallel.residual = "local" keeps the residual stream on one worker, but '
        'parallel.groups = 2 moves it on after every layer; use "auto", "direct" or "fused"',
    ),
    (
        ["parallel.residual=direct"],
        'parallel.residual = "direct" sends the residual stream to the next group, but '
        'parallel.groups = 1 has no other group; use "auto" or "local"',
    ),
    (
        ["parallel.shared_experts=expert"],
        'parallel.shared_experts = "expert", but model.shared_width = 0 has no shared experts; '
        'use "attention"',
    ),
    (
        [
            "model.family=deepseek",
            "model.shared_width=64",
            "parallel.groups=2",
            "parallel.residual=fused",
        ],
        'parallel.residual = "fused" sends the residual stream on before the shared experts of the '
        'attention workers are added to it; use "auto" or "direct", or '
        'parallel.shared_experts = "expert"',
    ),
    (
        ['train.optimizer.groups=["*"]', "train.optimizer.group_lr=[1.0, 2.0]"],
        "train.optimizer.group_lr has 2 numbers for 1 pattern in train.optimizer.groups; give one "
        "number per pattern, or []",
    ),
    (
        ['train.optimizer.groups=["*"]', "train.optimizer.group_weight_decay=[-1.0]"],
        "train.optimizer.group_weight_decay[0] = -1.0; expected a number >= 0",
    ),
    (
        ['train.optimizer.groups=["*"]'],
        "train.optimizer.groups has no effect without group_lr or group_weight_decay; give one of "
        "them, or []",
    ),
    (
        ["train.loss.bias_rate=1e-3"],
        'train.loss.bias_rate = 0.001, but the routers of model.family = "qwen3_moe" have no bias '
        'for the choice; use 0, or family "deepseek_v3"',
    ),
    (
        ["parallel.residual=fused"],
        'parallel.residual = "fused" sends the residual stream to the next group, but '
        'parallel.groups = 1 has no other group; use "auto" or "local"',
    ),
    (
        ["parallel.schedule=ep_1f1b", "parallel.attention_workers=2", "parallel.expert_workers=3"],
        'parallel.schedule = "ep_1f1b" puts attention and experts on the same workers, but '
        "attention_workers = 2 and expert_workers = 3; "
        'use equal numbers, or schedule "af_pipe"',
    ),
    (
        ["model.tied_embeddings=true", "parallel.groups=3"],
        "model.tied_embeddings = true needs embedding and LM head in one group, but with "
        "model.layers = 4 and parallel.groups = 3 they live in groups 0 and 1; "
        "use parallel.groups = 1, 2 or 4, or tied_embeddings = false",
    ),
    (
        ["parallel.micro_batch_size=17"],
        "parallel.micro_batch_size = 17 is more than train.global_batch_size = 16; use 1 to 16",
    ),
    (
        ["parallel.in_flight=5"],
        "parallel.in_flight = 5 is more than the 4 micro-batches of a step "
        "(train.global_batch_size = 16, parallel.micro_batch_size = 4); "
        "use 1 to 4, or 0 for automatic",
    ),
    (
        ["parallel.in_flight=2", "parallel.micro_batch_size=16"],
        "parallel.in_flight = 2 is more than the 1 micro-batch of a step "
        "(train.global_batch_size = 16, parallel.micro_batch_size = 16); "
        "use 1, or 0 for automatic",
    ),
    (
        ["parallel.in_flight=2", "parallel.rings=4"],
        "parallel.in_flight = 2 is more than the 1 micro-batch of a step "
        "(train.global_batch_size = 16, parallel.micro_batch_size = 4, parallel.rings = 4); "
        "use 1, or 0 for automatic",
    ),
    (
        ["parallel.rings=17"],
        "parallel.rings = 17 is more than train.global_batch_size = 16, so some rings would train "
        "on nothing; use 1 to 16",
    ),
    (
        ["parallel.in_flight=2", "parallel.schedule=serial"],
        'parallel.in_flight = 2, but parallel.schedule = "serial" runs one micro-batch after the '
        'other; use 0 or 1, or schedule "af_pipe"',
    ),
    (
        ["parallel.in_flight=2", "parallel.schedule=ep_1f1b"],
        'parallel.in_flight = 2, but parallel.schedule = "ep_1f1b" runs one micro-batch after the '
        'other; use 0 or 1, or schedule "ep_overlap"',
    ),
    (
        ["parallel.in_flight=1", "parallel.schedule=ep_overlap"],
        'parallel.in_flight = 1, but parallel.schedule = "ep_overlap" hides the all-to-all of one '
        "micro-batch behind the compute of another; use 2 to 4, or 0 for automatic",
    ),
    (
        ["parallel.in_flight=3", "parallel.max_in_flight=2"],
        "parallel.in_flight = 3 is more than parallel.max_in_flight = 2; "
        "use 1 to 2, or 0 for automatic",
    ),
    (
        ["parallel.max_in_flight=1", "parallel.schedule=ep_overlap"],
        'parallel.max_in_flight = 1, but parallel.schedule = "ep_overlap" works on pairs of '
        "micro-batches; use 2 or more, or 0 for no limit",
    ),
    (
        [*GLOBAL, "parallel.in_flight=2"],
        'train.loss.aux_scope = "global" needs all 4 micro-batches of a step in flight, so that '
        "the last is routed before the first goes back, but parallel.in_flight = 2; use 4, 0 for "
        'automatic, or scope "sequence"; a larger parallel.micro_batch_size makes fewer of them',
    ),
    (
        [*GLOBAL, "parallel.max_in_flight=3"],
        'train.loss.aux_scope = "global" needs all 4 micro-batches of a step in flight, so that '
        "the last is routed before the first goes back, but parallel.max_in_flight = 3; use 4, 0 "
        'for no limit, or scope "sequence"; a larger parallel.micro_batch_size makes fewer of them',
    ),
    (
        [*GLOBAL, "parallel.schedule=serial"],
        'train.loss.aux_scope = "global" needs all 4 micro-batches of a step in flight, so that '
        'the last is routed before the first goes back, but parallel.schedule = "serial" runs one '
        'after the other; use "af_pipe" or "ep_overlap", or scope "sequence"; a larger '
        "parallel.micro_batch_size makes fewer of them",
    ),
    (
        ["parallel.attention_workers=2", "parallel.attention_shares=[1, 2, 3]"],
        "parallel.attention_shares has 3 numbers for parallel.attention_workers = 2; give one "
        "number per worker, or [] for equal shares",
    ),
    (
        ["parallel.expert_workers=2", "parallel.expert_shares=[1]"],
        "parallel.expert_shares has 1 number for parallel.expert_workers = 2; give one "
        "number per worker, or [] for equal shares",
    ),
    (
        ["parallel.attention_workers=2", "parallel.attention_shares=[1, 0]"],
        "parallel.attention_shares[1] = 0.0; expected a number > 0",
    ),
    (
        ["parallel.expert_workers=2", "parallel.expert_shares=[1, 99]"],
        "parallel.expert_shares = [1.0, 99.0] divides model.experts = 8 into [0, 8], so some "
        "workers would hold no expert; use less unequal shares, or fewer parallel.expert_workers",
    ),
    (
        ["parallel.profile=on", "parallel.costs.rows=0.1"],
        'parallel.profile = "on" measures the costs, but parallel.costs are given; use "auto" or '
        '"off", or leave parallel.costs out',
    ),
    (
        ["parallel.profile=on", "train.steps=3", "train.lr_schedule.warmup_steps=0"],
        'parallel.profile = "on" measures until step 3, but train.steps = 3; use 4 or more steps, '
        'or profile = "off"',
    ),
    (
        ["train.lr_schedule.kind=wsd"],
        'train.lr_schedule.decay_steps = 0, but kind = "wsd" ends with a fall; use an integer >= 1',
    ),
    (
        ["train.lr_schedule.decay_steps=3"],
        'train.lr_schedule.decay_steps = 3 has no effect with kind = "cosine"; '
        'use 0, or kind = "wsd"',
    ),
    (
        ["train.lr_schedule.warmup_steps=201"],
        "train.lr_schedule.warmup_steps = 201 is more than train.steps = 200; use 0 to 200",
    ),
    (
        [*WSD, "train.lr_schedule.warmup_steps=191"],
        "train.lr_schedule.warmup_steps = 191 and decay_steps = 10 together are more than "
        "train.steps = 200; with this warm-up use decay_steps = 1 to 9",
    ),
    (
        [*WSD, "train.lr_schedule.warmup_steps=200"],
        "train.lr_schedule.warmup_steps = 200 leaves no step of train.steps = 200 for the fall of "
        'kind = "wsd"; use 0 to 199',
    ),
    (
        ['data.paths=["a", " "]'],
        "data.paths[1] is empty; expected a directory of `disagmoe data prepare`",
    ),
    (
        ["data.weights=[1, 2]"],
        "data.weights has 2 numbers for 1 path in data.paths; give one number per path, "
        "or [] for shares in proportion to size",
    ),
    (
        ["metrics.port_base=80"],
        "metrics.port_base = 80 gives the driver and 4 workers no ports; use 0, or 1024 to 65531",
    ),
    (
        ["metrics.expert_peak_flops=1e12"],
        "metrics.attention_peak_flops and metrics.expert_peak_flops are given together: MFU is "
        "measured against the peaks of both sides; give the other one as well, or neither",
    ),
    (
        ["metrics.expert_peak_flops=1e12", "parallel.schedule=ep_1f1b"],
        'metrics.expert_peak_flops has no effect with parallel.schedule = "ep_1f1b", whose workers '
        "have attention and experts; use 0 and metrics.attention_peak_flops",
    ),
    (
        ["data.weights=[0]"],
        "data.weights[0] = 0.0; expected a number > 0 (leave out a path that gives nothing)",
    ),
    (
        ["hardware.attention_machine=h900"],
        'hardware.attention_machine = "h900" is no machine that is known; use "a100", "h100", '
        '"h800", "h20", "h200", "b200" or "cpu", or a file that `disagmoe calibrate --out '
        "NAME.json` has written on one",
    ),
    (
        ["hardware.expert_machine=m.json", "hardware.calibration=cpu-kernel"],
        'hardware.calibration = "cpu-kernel", but hardware.expert_machine = "m.json" says itself '
        'what was measured; use calibration "usual"',
    ),
    (
        ["parallel.schedule=ep_1f1b", "hardware.expert_machine=h20"],
        'hardware.expert_machine = "h20" and attention_machine = "h800", but parallel.schedule = '
        '"ep_1f1b" has attention and experts on the same workers, which go at the pace of the '
        'slowest; use the slower one and expert_machine "same"',
    ),
    (
        ["parallel.schedule=ep_overlap", "hardware.mixed_nodes=true"],
        'hardware.mixed_nodes = true has no effect with parallel.schedule = "ep_overlap", whose '
        "workers have attention and experts; use false",
    ),
    (
        ["hardware.slow_factor=2"],
        "hardware.slow_factor = 2.0 has no effect without a hardware.slow_worker; name one, or use "
        "1.5",
    ),
    (
        ["hardware.slow_worker=F1.0"],
        'hardware.slow_worker = "F1.0" is no worker; groups are A0, F0, and a worker is written '
        "A0.0",
    ),
    (
        ["parallel.schedule=ep_1f1b", "hardware.slow_worker=C0.2"],
        'hardware.slow_worker = "C0.2" is no worker; the ranks of C0 are 0 to 1',
    ),
]

LEGAL = [
    [],
    ["name=Run-2_b.c"],
    ["model.kv_heads=6"],
    ["model.top_k=8"],
    ["model.family=mixtral"],
    ["parallel.groups=4"],
    ["parallel.groups=3"],
    ["parallel.expert_workers=8"],
    ["parallel.groups=2", "parallel.residual=direct"],
    ["parallel.groups=2", "parallel.residual=fused"],
    ["parallel.residual=local"],
    ["model.tied_embeddings=true", "parallel.groups=2"],
    ["parallel.micro_batch_size=16"],
    ["parallel.in_flight=4"],
    ["parallel.in_flight=2", "parallel.max_in_flight=2"],
    ["parallel.max_in_flight=1"],
    ["parallel.micro_batch_size=3", "parallel.in_flight=6"],
    ["parallel.schedule=serial", "parallel.in_flight=1"],
    ["parallel.schedule=ep_1f1b", "parallel.in_flight=1"],
    ["parallel.schedule=ep_1f1b", "parallel.in_flight=2", "parallel.groups=2"],
    ["parallel.schedule=ep_overlap", "parallel.in_flight=2"],
    ["parallel.schedule=ep_overlap", "parallel.in_flight=1", "parallel.micro_batch_size=16"],
    ["parallel.schedule=ep_overlap", "parallel.attention_workers=4", "parallel.expert_workers=4"],
    ["parallel.attention_workers=2", "parallel.expert_workers=3"],
    ["parallel.attention_workers=2", "parallel.attention_shares=[1, 99]"],
    ["parallel.profile=on", "train.steps=4", "train.lr_schedule.warmup_steps=0"],
    ["parallel.profile=on", "parallel.costs.rows=0.5"],
    ["parallel.profile=off", "parallel.costs.rows=0.1"],
    ["parallel.expert_workers=2", "parallel.expert_shares=[1, 7]"],
    ["parallel.rings=16", "parallel.micro_batch_size=1"],
    ["train.lr_schedule.warmup_steps=200"],
    [*WSD, "train.lr_schedule.warmup_steps=190"],
    ['data.paths=["a", "b"]', "data.weights=[1, 2.5]"],
]


@pytest.mark.parametrize(("sets", "problem"), REFUSED)
def test_refused(sets: list[str], problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        override(STARTER, sets)
    assert caught.value.problems == [problem]


@pytest.mark.parametrize("sets", LEGAL)
def test_legal(sets: list[str]) -> None:
    assert problems(override(STARTER, sets)) == []


def rules_broken_by(sets: list[str]) -> set[str]:
    tree = STARTER.model_dump()
    for assignment in sets:
        apply_set(tree, assignment)
    config = RunConfig.model_validate(tree)
    return {rule.__name__ for rule in RULES if list(rule(config))}


def test_every_rule_is_refused_by_a_case_above() -> None:
    broken = [rules_broken_by(sets) for sets, _ in REFUSED]
    # test_cluster_rules.py and test_model_rules.py
    theirs = {rule.__name__ for rule in (*CLUSTER_RULES, *MODEL_RULES)}
    assert set().union(*broken) == {rule.__name__ for rule in RULES} - theirs
    assert [len(names) for names in broken] == [1] * len(broken)


def test_all_broken_rules_are_told() -> None:
    with pytest.raises(ConfigError) as caught:
        override(STARTER, ["model.kv_heads=4", "model.top_k=9", "parallel.in_flight=5"])
    assert [problem.split(" ")[0] for problem in caught.value.problems] == [
        "model.kv_heads",
        "model.top_k",
        "parallel.in_flight",
    ]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ([], []),
        (
            ["parallel.attention_workers=5"],
            [
                "1 of 5 attention workers per group (20 %) is idle, because "
                "parallel.micro_batch_size = 4; use 5 or more sequences per micro-batch, or "
                "parallel.attention_workers = 4"
            ],
        ),
        (
            ["parallel.attention_workers=3", "parallel.micro_batch_size=1"],
            [
                "2 of 3 attention workers per group (67 %) are idle, because "
                "parallel.micro_batch_size = 1; use 3 or more sequences per micro-batch, or "
                "parallel.attention_workers = 1"
            ],
        ),
        (
            ["parallel.attention_workers=2", "parallel.attention_shares=[9, 1]"],
            [
                "1 of 2 attention workers per group (50 %) is idle, because "
                "parallel.micro_batch_size = 4 and attention_shares = [9.0, 1.0]; use 2 or more "
                "sequences per micro-batch, or parallel.attention_workers = 1"
            ],
        ),
        (
            ["model.top_k=1"],
            [
                "model.top_k = 1 with norm_topk_prob = true makes every gate weight 1, so the "
                "router gets no gradient from the cross-entropy; use norm_topk_prob = false or "
                "top_k >= 2"
            ],
        ),
    ],
)
def test_warnings(sets: list[str], expected: list[str]) -> None:
    assert warnings(override(STARTER, sets)) == expected
