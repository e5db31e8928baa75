"""The opponents at a setting, and what of them another network would make."""

from dataclasses import dataclass

from disagmoe.costs.times import StepTimes
from disagmoe.planner.baselines import Opponent, opponents
from disagmoe.reproduce.setting import Setting, colocated_times


@dataclass(frozen=True, slots=True)
class Rivals:
    """All opponents, with the parts of a step of Megatron, which overlaps nothing."""

    by_name: dict[str, Opponent]

    @property
    def network(self) -> float:
        """Seconds of all-to-alls of one worker in a step."""
        return self.by_name["megatron"].exposed

    @property
    def rest(self) -> float:
        """All other seconds of Megatron's step."""
        return self.by_name["megatron"].seconds - self.network

    def network_factor(self, seconds: float) -> float:
        """How much slower all-to-alls would have to be for Megatron's step to take `seconds`."""
        return (seconds - self.rest) / self.network


def rivals(setting: Setting, *, copies_by_network: bool = True) -> Rivals:
    """The opponents with as many micro-batches as the setting has."""
    times: StepTimes = colocated_times(setting, copies_by_network=copies_by_network)
    return Rivals(opponents(times, setting.batch // setting.side))
