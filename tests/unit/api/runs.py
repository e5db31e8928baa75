"""Events and results of runs that never were."""

from disagmoe.actors.events import EvalResult, RunPlaced, RunStarted, Seat, StepResult
from disagmoe.actors.messages import Started
from disagmoe.runtime.report import HopCounts
from disagmoe.schedule.accounting import Shares

SHARES = {
    "A0": Shares(utilisation=0.75, exposed_communication=0.25, bubble=0.0),
    "F0": Shares(utilisation=0.5, exposed_communication=0.5, bubble=0.0),
}


def placed() -> RunPlaced:
    """Two workers on nodes of their own, one of them with a GPU."""
    common = {"pid": 11, "environment": {}}
    return RunPlaced(
        seats=(
            Seat(
                worker="A0.0",
                node="a" * 20,
                host="10.0.0.1",
                gpu=3,
                device="NVIDIA H800",
                nics=("mlx5_3", "mlx5_4"),
                **common,
            ),
            Seat(
                worker="F0.0",
                node="b" * 20,
                host="10.0.0.2",
                gpu=None,
                device="cpu",
                nics=(),
                **common,
            ),
        )
    )


def started() -> RunStarted:
    """Two workers."""
    versions = {"python": "3.12.1"}
    return RunStarted(
        workers=(
            Started(worker="A0.0", host="127.0.0.1", pid=11, versions=versions),
            Started(worker="F0.0", host="127.0.0.1", pid=12, versions=versions),
        )
    )


def step(
    number: int, *, step_s: float = 2.0, loss: float | None = None, skipped: str = ""
) -> StepResult:
    """Step `number`; its loss is 5 minus that, if not given."""
    return StepResult(
        step=number,
        loss=5.0 - number if loss is None else loss,
        balance=2.0,
        z=3.0,
        grad_norm=0.5,
        lr=1e-3,
        tokens=100,
        valid_targets=90,
        skipped=skipped,
        stopped=False,
        saving=False,
        step_s=step_s,
        tokens_per_s=100 / step_s,
        compute_share={"A0": 0.75, "F0": 0.5},
        shares=SHARES,
        seconds={
            "A0.0": {"compute": 3.0, "recv_wait": 1.0},
            "F0.0": {"compute": 1.0, "recv_wait": 1.0},
        },
        channel_bytes={"A0>F0.act": 64 + number},
        channel_messages={"A0>F0.act": 2},
        hops={"inter": HopCounts(rows=150 + number, exact_rows=150 + number, nbytes=64)},
        expert_load=(1.5, 1.0),
        expert_variation=(0.5, 0.0),
        dead_experts=(1, 0),
        peak_memory_bytes={"A0.0": 1000 + number, "F0.0": 900},
    )


def evaluation(after: int) -> EvalResult:
    """The evaluation after step `after`."""
    return EvalResult(step=after, loss=6.0 + after, valid_targets=50, elapsed_s=0.5)
