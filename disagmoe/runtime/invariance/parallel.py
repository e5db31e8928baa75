"""The comparison divided among processes: threads of one process share a core, because Python runs
one of them at a time."""

import multiprocessing
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch

from disagmoe.config.run import RunConfig
from disagmoe.errors import WorkerError
from disagmoe.runtime.invariance.layouts import Case
from disagmoe.runtime.invariance.run import Outcome, Verdict, check_cases, run_invariance


def run_divided(
    config: RunConfig, cases: Sequence[Case], report: Callable[[Outcome], None], jobs: int
) -> Verdict:
    """Do what `run_invariance` does in `jobs` processes at once; `report` hears of outcomes as they
    come, the verdict has them in the order of a single process.

    Raises ConfigError when a case does not fit the model, WorkerError when a worker or a process
    fails.
    """
    check_cases(config, cases)  # all problems before the first process
    shares = divide(cases, jobs)
    if len(shares) <= 1:
        return run_invariance(config, cases, report)
    context = multiprocessing.get_context("spawn")
    processes: dict[Connection, BaseProcess] = {}
    try:
        for share in shares:
            here, there = context.Pipe(duplex=False)
            # no daemon: it starts processes itself, for what runs over gloo
            process: BaseProcess = context.Process(target=_run_share, args=(there, config, share))
            process.start()
            there.close()
            processes[here] = process
        verdicts = collect(list(processes), report)
    except BaseException:
        for process in processes.values():
            process.terminate()
        raise
    finally:
        for pipe, process in processes.items():
            process.join()
            pipe.close()
    place = {case: at for at, case in enumerate(cases)}
    outcomes = [outcome for verdict in verdicts for outcome in verdict.outcomes]
    return Verdict(
        tuple(sorted(outcomes, key=lambda outcome: (outcome.rule.place, place[outcome.case]))),
        tuple(sorted({name for verdict in verdicts for name in verdict.zero_gradients})),
    )


def divide(cases: Sequence[Case], jobs: int) -> list[list[Case]]:
    """Divide `cases` into at most `jobs` shares of about the same work, each in the order of
    `cases`; twins, which are compared with each other, stay together."""
    families: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        families.setdefault(case.twin, []).append(case)
    shares: list[list[Case]] = [[] for _ in range(jobs)]
    for family in sorted(families.values(), key=_work, reverse=True):
        min(shares, key=_work).extend(family)
    return [[case for case in cases if case in share] for share in shares if share]


def _work(cases: Sequence[Case]) -> int:
    """What `cases` take, roughly: micro-batches of workers, each in each ring."""
    return sum(
        case.micro_batches * case.rings * case.groups * (case.attention + case.experts)
        for case in cases
    )


def collect(pipes: list[Connection], report: Callable[[Outcome], None]) -> list[Verdict]:
    """Return the verdict of each process. Raises what one of them has raised, and WorkerError when
    one ends without a verdict."""
    verdicts: list[Verdict] = []
    running = list(pipes)
    while running:
        for pipe in wait(running):
            assert isinstance(pipe, Connection)
            try:
                said = pipe.recv()
            except EOFError:
                raise WorkerError("a process of the comparison has died") from None
            if isinstance(said, Outcome):
                report(said)
            elif isinstance(said, Verdict):
                verdicts.append(said)
                running.remove(pipe)
            else:
                raise said
    return verdicts


def _run_share(pipe: Connection, config: RunConfig, cases: list[Case]) -> None:
    torch.set_num_threads(1)
    try:
        pipe.send(run_invariance(config, cases, pipe.send))
    except Exception as error:  # noqa: BLE001 - raised again by the parent
        pipe.send(error)
