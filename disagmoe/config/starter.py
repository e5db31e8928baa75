"""The file that `disagmoe config init` writes."""

from disagmoe.config.data import DataConfig
from disagmoe.config.model import ModelConfig
from disagmoe.config.parallel import ParallelConfig
from disagmoe.config.run import RunConfig
from disagmoe.config.tomlwrite import dump_toml
from disagmoe.config.train import (
    EvalConfig,
    LossConfig,
    LrScheduleConfig,
    OptimizerConfig,
    TrainConfig,
)

STARTER = RunConfig(
    name="first",
    model=ModelConfig(
        family="qwen3_moe",
        vocab_size=4096,
        hidden=192,
        layers=4,
        heads=6,
        kv_heads=2,
        head_dim=32,
        experts=8,
        top_k=2,
        expert_width=384,
    ),
    parallel=ParallelConfig(attention_workers=2, expert_workers=2, micro_batch_size=4),
    train=TrainConfig(
        steps=200,
        global_batch_size=16,
        sequence_length=256,
        optimizer=OptimizerConfig(lr=1e-3),
        lr_schedule=LrScheduleConfig(warmup_steps=20),
        loss=LossConfig(aux_coef=0.01, z_coef=1e-3),
        eval=EvalConfig(every=50),
    ),
    data=DataConfig(paths=["data/tokens"]),
)

_HEADER = """\
# A run of DisagMoE. Prepare its tokens, then train:
#   disagmoe data prepare --input 'texts/*.txt' --out data/tokens
#   disagmoe train --config {path}
# Lines that start with `# key =` show defaults: remove the `#` to change one.

"""


def starter_toml(path: str) -> str:
    """Return the starter config as commented TOML, to be stored at `path`."""
    return _HEADER.format(path=path) + dump_toml(STARTER, unset_as_comments=True)
