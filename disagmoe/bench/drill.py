"""The plan of a drill: which faults, on which workers, in which phases and steps. Pure."""

import random
from collections.abc import Sequence
from typing import get_args

from disagmoe.actors.injector import Injection, Kind, Phase

EVERY = 3
"""Steps from one fault to the next; checkpoints come as often, so that some steps are lost."""
FIRST = 2
_MOST_SKIPPED = 6
"""Instructions of a phase that each worker has in each step: micro-batches times layers."""
_PHASES: tuple[Phase, ...] = get_args(Phase)
_OTHERS: tuple[tuple[Kind, Phase], ...] = (
    ("driver", "forward"),
    ("exception", "forward"),
    ("nan", "reduction"),
    ("full disk", "saving"),
    ("memory", "backward"),
    ("exception", "optimizer"),
    ("driver", "saving"),
    ("nan", "reduction"),
)


def drill(seed: int, count: int, workers: Sequence[str]) -> list[Injection]:
    """Return `count` faults, in the order in which they will happen.

    Kills and freezes of one worker of each kind in each phase come in a shuffled order, mixed with
    one of the other faults after every third.
    """
    rng = random.Random(seed)
    kinds = {name[0]: [other for other in workers if other[0] == name[0]] for name in workers}
    kinds_of_fault: tuple[Kind, ...] = ("kill", "freeze")
    cells = [(kind, phase, side) for kind in kinds_of_fault for phase in _PHASES for side in kinds]
    plan: list[Injection] = []
    queue: list[tuple[Kind, Phase, str]] = []
    others = 0
    while len(plan) < count:
        if len(plan) % 4 == 3:
            kind, phase = _OTHERS[others % len(_OTHERS)]
            side = rng.choice(sorted(kinds))
            others += 1
        else:
            if not queue:
                queue = rng.sample(cells, len(cells))
            kind, phase, side = queue.pop()
        step = FIRST + EVERY * len(plan)
        # a save follows each step whose number of done steps is a multiple
        step += (EVERY - 1 - step) % EVERY if phase == "saving" else rng.randrange(2)
        plan.append(
            Injection(
                number=len(plan),
                kind=kind,
                phase=phase,
                worker=rng.choice(kinds[side]),
                step=step,
                skip=rng.randrange(_MOST_SKIPPED) if phase in ("forward", "backward") else 0,
                again=kind == "nan",  # part of its step, in the undisturbed run too
            )
        )
    return plan


def steps_of(plan: Sequence[Injection]) -> int:
    """Steps of a run in which all of `plan` happens."""
    return plan[-1].step + EVERY
