"""A whole run: all sections together, and the way in from a file."""

from collections.abc import Sequence
from pathlib import Path

from disagmoe.config.base import Section
from disagmoe.config.checkpoint import CheckpointConfig
from disagmoe.config.cluster import ClusterConfig
from disagmoe.config.data import DataConfig
from disagmoe.config.model import ModelConfig
from disagmoe.config.parallel import ParallelConfig, micro_batches
from disagmoe.config.trace import TraceConfig
from disagmoe.config.train import TrainConfig


class RunConfig(Section):
    """All that `disagmoe train` needs to know."""

    name: str = "run"
    """Name of the run, shown in logs and used for the default run directory: letters, digits, `.`,
    `_` and `-`."""
    model: ModelConfig
    """The network."""
    parallel: ParallelConfig = ParallelConfig()
    """Its division over workers."""
    train: TrainConfig
    """Steps, batch and optimizer."""
    data: DataConfig
    """Tokens."""
    cluster: ClusterConfig = ClusterConfig()
    """Machines."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """Saved states."""
    trace: TraceConfig = TraceConfig()
    """Steps that are traced."""

    @classmethod
    def load(cls, path: str | Path, sets: Sequence[str] = ()) -> "RunConfig":
        """Read the TOML file `path`, then apply `sets` (`train.steps=10`); see `load_run_config`.

        Raises:
            ConfigError: with all problems of the file and of `sets`.
        """
        # load.py builds RunConfigs and so imports this file.
        from disagmoe.config.load import load_run_config

        return load_run_config(path, sets)

    @property
    def micro_batches(self) -> int:
        """Micro-batches of each ring per step; the last one may be smaller."""
        parallel = self.parallel
        return micro_batches(
            self.train.global_batch_size, parallel.micro_batch_size, parallel.rings
        )
