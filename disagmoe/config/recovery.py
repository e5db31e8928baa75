"""What a run does when workers fail."""

from pydantic import Field

from disagmoe.config.base import Section


class RecoveryConfig(Section):
    """Starting workers again after a failure, from the last complete checkpoint."""

    max_failures: int = Field(default=3, ge=0)
    """Failures within `window_s` after which workers are started again; one more ends the run. 0
    never starts them again. Nodes that are preempted do not count; the same error at the same step
    twice ends the run at once."""
    window_s: float = Field(default=3600.0, gt=0)
    """For how long a failure counts."""
    backoff_s: float = Field(default=1.0, ge=0)
    """Pause before workers are started again; doubles with each failure that counts, up to 32
    times this."""
