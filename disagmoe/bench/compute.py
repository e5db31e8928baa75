"""`disagmoe bench compute`: our run and our one-process reference against Hugging Face
Transformers, training the same model on the same cores of one machine."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import ray  # noqa: F401 - makes its own copy of psutil importable, in ray/thirdparty_files

# isort: split
import psutil

from disagmoe.bench.alone import MakeReference
from disagmoe.bench.apart import Learned, Timed
from disagmoe.bench.contenders import Alone, Contender, Ours, Trial, best
from disagmoe.bench.cores import kept_to
from disagmoe.bench.gemm import gemm_flops_per_s
from disagmoe.bench.hf_model import check_transformers
from disagmoe.bench.hf_training import MakeTransformers, gathered_bytes
from disagmoe.bench.rounds import take_turns
from disagmoe.bench.text import VOCABULARY, prepare_text
from disagmoe.cluster.local import LOOPBACK, local_ray
from disagmoe.config.load import override
from disagmoe.config.resolve import resolve
from disagmoe.config.run import RunConfig
from disagmoe.costs.flops import model_flops
from disagmoe.errors import ConfigError, PlacementError, WorkerError
from disagmoe.model.precision import TYPES
from disagmoe.schedule.accounting import Shares
from disagmoe.transport.rendezvous import StoreServer
from disagmoe.units import format_bytes

Say = Callable[[str], None]

RUN, REFERENCE = "run", "reference"
BATCHED = "batched_mm"
IMPLEMENTATIONS = ("grouped_mm", "eager", BATCHED)
"""Of the experts in Transformers 5 those that are made for any device."""
HOPELESS = 1.5
"""An implementation that takes so many times as long as the fastest in the trial does not take part
in the rounds; its figure is that of the trial."""

_SINGLE = ("train.global_batch_size=1", "parallel.micro_batch_size=1", "parallel.in_flight=1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the comparison."""

    name: str
    step_tokens: int = 0
    micro_batch_size: int = 0
    """Sequences; the best for this side."""
    steps_s: tuple[float, ...] = ()
    """One per round; the best of the trial for a side that was left out of the rounds, none for one
    that this machine cannot run."""
    learned: tuple[Learned, ...] = ()
    """By step, from the initial weights."""
    shares: Mapping[str, Shares] = field(default_factory=dict)
    """What became of each worker's time, where there are workers."""
    left_out: str = ""
    """Why it was not in the rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All sides."""

    config: RunConfig
    cores: int
    flops: float
    gemm_flops_per_s: float
    sides: Mapping[str, Side]


def compare(
    config: RunConfig, folder: Path, sizes: Sequence[int], rounds: int, say: Say
) -> Outcome:
    """Train all sides, each in micro-batches of that of `sizes` which is best for it; `folder`
    takes data and logs.

    Raises:
        ConfigError: Transformers is not installed, or cannot train what `config` asks for.
        PlacementError: this machine has fewer cores than our workers have threads.
        WorkerError: a step fails, of our run or of our reference.
    """
    check_transformers()
    if found := problems(config):
        raise ConfigError(found)
    threads = max(config.cluster.threads_per_worker, 1)
    cores = config.parallel.workers * threads
    with ExitStack() as stack:
        stack.enter_context(pinned_to(cores))
        data = prepare_text(folder, bpe_vocab_size=config.model.vocab_size)
        config = override(config, [f'data.paths=["{data}"]'])
        resolved = resolve(config, cuda=False)
        length = resolved.train.sequence_length
        rate = gemm_flops_per_s(resolved, TYPES[resolved.train.precision], cores)
        stack.enter_context(local_ray(config.parallel.workers, threads))
        store = StoreServer(LOOPBACK)
        stack.callback(store.close)
        contest = Contest(stack, sizes, say)
        for name in IMPLEMENTATIONS:
            contest.try_transformers(name, resolved, cores)
        contest.join(Alone(REFERENCE, MakeReference(resolved), cores))
        contest.join(Ours(RUN, config, store, folder))
        contest.play(rounds)
        return Outcome(
            config=resolved,
            cores=cores,
            flops=model_flops(resolved.model, length) * step_tokens(resolved),
            gemm_flops_per_s=rate,
            sides={
                name: contest.side(name, step_tokens(resolved))
                for name in (*IMPLEMENTATIONS, REFERENCE, RUN)
            },
        )


def problems(config: RunConfig) -> list[str]:
    """Return what in `config` Transformers has not got, or has in another form."""
    found = []
    if config.model.forced_balance:
        found.append("model.forced_balance must be false here: Transformers' routers decide")
    if config.train.loss.aux_coef or config.train.loss.z_coef:
        found.append(
            "train.loss.aux_coef and z_coef must be 0 here: Transformers defines these losses in "
            "another way"
        )
    if config.model.vocab_size < VOCABULARY:
        found.append(
            f"model.vocab_size = {config.model.vocab_size}; the text of this bench needs "
            f"{VOCABULARY} or more"
        )
    return found


def step_tokens(config: RunConfig) -> int:
    """Return the tokens that a step predicts, but for ends of documents."""
    return config.train.global_batch_size * config.train.sequence_length


class Contest:
    """Contenders, what they did in their trial, and why some do not play."""

    def __init__(self, stack: ExitStack, sizes: Sequence[int], say: Say) -> None:
        """Contenders end with `stack`."""
        self._stack = stack
        self._sizes = sizes
        self._say = say
        self._contenders: dict[str, Contender] = {}
        self._trials: dict[str, Trial] = {}
        self._behind: dict[str, Side] = {}
        self._taken: dict[str, list[Timed]] = {}

    def try_transformers(self, name: str, config: RunConfig, threads: int) -> None:
        """Let the implementation `name` in, if this machine can run it. One that copies weights
        shows with a single sequence per step that a whole batch is worth the time."""
        try:
            if name == BATCHED and not self._keeps_up(name, config, threads):
                return
            self.join(Alone(name, MakeTransformers(config, name), threads))
        except WorkerError as error:
            self._leave_out(Side(name=name, left_out=str(error)))

    def _keeps_up(self, name: str, config: RunConfig, threads: int) -> bool:
        needed, available = gathered_bytes(config), psutil.virtual_memory().available
        if needed > available // 2:
            reason = (
                f"it copies the weights of every choice, {format_bytes(needed)} for one sequence, "
                f"and {format_bytes(available)} of memory are free"
            )
            self._leave_out(Side(name=name, left_out=reason))
            return False
        single = override(config, _SINGLE)
        alone = Alone(name, MakeTransformers(single, name), threads)
        try:
            trial = best(alone, (1,))
        finally:
            alone.close()
        per_token_s = trial.step_s / step_tokens(single)
        fastest_s = min((t.step_s for t in self._trials.values()), default=0.0)
        behind = per_token_s * step_tokens(config) / fastest_s if fastest_s else 1.0
        if behind <= HOPELESS:
            return True
        self._leave_out(
            Side(
                name=name,
                step_tokens=step_tokens(single),
                micro_batch_size=1,
                steps_s=(trial.step_s,),
                left_out=f"one sequence takes {behind:.1f} times its share of the fastest's step",
            )
        )
        return False

    def join(self, contender: Contender) -> None:
        """Let `contender` find its micro-batch size. Raises WorkerError when a step fails."""
        self._stack.callback(contender.close)
        trial = best(contender, self._sizes)
        self._contenders[contender.name] = contender
        self._trials[contender.name] = trial
        self._say(
            f"{contender.name}: {trial.step_s:.2f} s per step in micro-batches of "
            f"{trial.micro_batch_size}"
        )

    def _leave_out(self, side: Side) -> None:
        self._behind[side.name] = side
        self._say(f"{side.name}: left out of the rounds, {side.left_out}")

    def play(self, rounds: int) -> None:
        """Let all take turns that are not far behind."""
        theirs = {name: t.step_s for name, t in self._trials.items() if name in IMPLEMENTATIONS}
        if not theirs:
            raise WorkerError("no expert implementation of Transformers could train this model")
        late = {name: s / min(theirs.values()) for name, s in theirs.items()}
        late = {name: behind for name, behind in late.items() if behind > HOPELESS}
        players = {name: one.step for name, one in self._contenders.items() if name not in late}
        self._taken = take_turns(players, rounds)
        for name, behind in late.items():
            reason = f"it takes {behind:.1f} times as long as the fastest"
            self._leave_out(Side(name=name, left_out=reason))

    def side(self, name: str, step_tokens: int) -> Side:
        """What came of contender `name`, whose steps have `step_tokens` tokens."""
        behind = self._behind.get(name)
        if name not in self._contenders:
            assert behind is not None
            return behind
        trial, one = self._trials[name], self._contenders[name]
        rounds = tuple(step.elapsed_s for step in self._taken.get(name, ()))
        return Side(
            name=name,
            step_tokens=step_tokens,
            micro_batch_size=trial.micro_batch_size,
            steps_s=rounds or (trial.step_s,),
            learned=tuple(one.learned()),
            shares=one.shares(),
            left_out=behind.left_out if behind else "",
        )


@contextmanager
def pinned_to(count: int) -> Iterator[None]:
    """Leave this process, and what it starts, the first `count` of its cores.

    Raises:
        PlacementError: it has fewer.
    """
    before = sorted(os.sched_getaffinity(0))
    if len(before) < count:
        raise PlacementError(
            f"our workers have {count} compute threads together, but this process may use only "
            f"{len(before)} cores; ask for fewer workers or threads_per_worker"
        )
    with kept_to(before[:count]):
        yield
