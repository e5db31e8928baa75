"""Who takes part in `bench compute`: trainings in one process, and our run on Ray workers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from disagmoe.bench.apart import Apart, Learned, Timed, Trainee
from disagmoe.bench.rig import Rig
from disagmoe.bench.sample import within
from disagmoe.cluster.ground import on_own_ray
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError
from disagmoe.runtime.profile import Profile
from disagmoe.schedule.accounting import Shares, add_up
from disagmoe.schedule.costs import OpCosts
from disagmoe.transport.rendezvous import StoreServer

_TRIAL_STEPS = 2
"""Per micro-batch size."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A micro-batch size and the best of its steps."""

    micro_batch_size: int
    step_s: float


class Contender(Protocol):
    """One side of the comparison."""

    name: str

    def trials(self, sizes: Sequence[int]) -> list[Trial]:
        """Try micro-batches of `sizes` sequences. Raises WorkerError where a step fails."""
        ...

    def settle(self, trial: Trial) -> None:
        """Go on with the settings of `trial`."""
        ...

    def step(self) -> Timed:
        """Do the next step with them."""
        ...

    def learned(self) -> list[Learned]:
        """What came of the steps since the initial weights, in order."""
        ...

    def shares(self) -> dict[str, Shares]:
        """What became of each worker's time since `settle`, where there are workers."""
        ...

    def close(self) -> None:
        """End its processes."""
        ...


class Alone:
    """A training in one process."""

    def __init__(self, name: str, make: Callable[[], Trainee], threads: int) -> None:
        self.name = name
        self._apart = Apart(name, make, threads)
        self._size = 1
        self._learned: list[Learned] = []

    def trials(self, sizes: Sequence[int]) -> list[Trial]:
        """See Contender.trials."""
        tried = []
        self._size = sizes[0]
        self.step()  # builds the model, and is not counted
        for size in sizes:
            self._size = size
            tried.append(Trial(size, min(self.step().elapsed_s for _ in range(_TRIAL_STEPS))))
        return tried

    def settle(self, trial: Trial) -> None:
        """See Contender.settle."""
        self._size = trial.micro_batch_size

    def step(self) -> Timed:
        """See Contender.step."""
        timed = self._apart.step(self._size)
        self._learned.append(timed.learned)
        return timed

    def learned(self) -> list[Learned]:
        """See Contender.learned."""
        return self._learned

    def shares(self) -> dict[str, Shares]:
        """See Contender.shares."""
        return {}

    def close(self) -> None:
        """See Contender.close."""
        self._apart.close()


class Ours:
    """Our run: real workers of a local Ray, whose schedule is made for measured costs."""

    def __init__(self, name: str, config: RunConfig, store: StoreServer, folder: Path) -> None:
        """`config` is not resolved, as depth depends on micro-batches; `folder` takes logs."""
        self.name = name
        self._config = config
        (folder / "logs").mkdir(parents=True, exist_ok=True)
        self._rig = Rig(on_own_ray(config, store.host).places, store, folder, name)
        self._learned: list[Learned] = []
        self._seconds: dict[str, list[dict[str, float]]] = {}
        self._costs: dict[int, OpCosts] = {}

    def trials(self, sizes: Sequence[int]) -> list[Trial]:
        """See Contender.trials. Sizes that leave one micro-batch are left out, as nothing could
        overlap then."""
        several = [size for size in sizes if size < self._config.train.global_batch_size]
        tried = []
        for size in several:
            self._costs[size] = self._profile(size)
            trial = Trial(size, 0.0)
            self.settle(trial)
            tried.append(Trial(size, min(self.step().elapsed_s for _ in range(_TRIAL_STEPS))))
        return tried

    def _profile(self, size: int) -> OpCosts:
        traced = ["trace.first_step=1", f"trace.steps={_TRIAL_STEPS}"]
        self._rig.set_up(self._with(size, traced))
        self._rig.step()
        steps = [self._rig.step() for _ in range(_TRIAL_STEPS)]
        traces = [
            {worker: report.trace for worker, report in step.reports.items() if report.trace}
            for step in steps
        ]
        return OpCosts.from_seconds(Profile.of(traces).costs({}))

    def settle(self, trial: Trial) -> None:
        """See Contender.settle. Starts anew, and does a step that is not counted."""
        costs = self._costs[trial.micro_batch_size].to_dict()
        sets = [f"parallel.costs.{name}={cost!r}" for name, cost in costs.items()]
        self._rig.set_up(self._with(trial.micro_batch_size, sets))
        self._learned, self._seconds = [], {}
        self.step()
        self._seconds = {}

    def _with(self, size: int, sets: Sequence[str]) -> RunConfig:
        sized = override(self._config, [f"parallel.micro_batch_size={size}", *sets])
        return resolve(sized, cuda=False)

    def step(self) -> Timed:
        """See Contender.step."""
        done = self._rig.step()
        for worker, report in done.reports.items():
            seconds = within(report.seconds, done.elapsed_s)
            self._seconds.setdefault(worker, []).append(seconds)
        report = next(iter(done.reports.values()))
        learned = Learned(report.loss, report.grad_norm)
        self._learned.append(learned)
        return Timed(done.elapsed_s, learned)

    def learned(self) -> list[Learned]:
        """See Contender.learned."""
        return self._learned

    def shares(self) -> dict[str, Shares]:
        """See Contender.shares."""
        return {worker: Shares.of(add_up(steps)) for worker, steps in self._seconds.items()}

    def close(self) -> None:
        """See Contender.close."""
        self._rig.close()


def best(contender: Contender, sizes: Sequence[int]) -> Trial:
    """Try `sizes`, settle on the fastest, and return it. Raises WorkerError where a step fails."""
    tried = contender.trials(sizes)
    if not tried:
        raise WorkerError(f"{contender.name}: no micro-batch size of {list(sizes)} fits its batch")
    trial = min(tried, key=lambda one: one.step_s)
    contender.settle(trial)
    return trial
