"""A whole run, and every rule that spans more than one section."""

from disagmoe.config.base import Section
from disagmoe.config.cluster import ClusterConfig
from disagmoe.config.data import DataConfig
from disagmoe.config.model import ModelConfig
from disagmoe.config.parallel import ParallelConfig
from disagmoe.config.train import TrainConfig


class RunConfig(Section):
    """All that `disagmoe train` needs to know."""

    name: str = "run"
    """Name of the run, shown in logs and used for the default run directory."""
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
