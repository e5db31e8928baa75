"""The outcome of a run: the content of `result.json`."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

from disagmoe.api.hops import HopFigures
from disagmoe.errors import ConfigError, WorkerError
from disagmoe.schedule.accounting import Shares

RESULT_FILE = "result.json"

Status = Literal["ok", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a run has done, whatever its end."""

    status: Status
    """`ok`: all steps are done; `stopped`: somebody ended it before; `failed`: see `first_error`.
    """
    first_step: int
    """Steps that had been done before, where the run went on from a checkpoint; else 0."""
    steps: int
    """Optimizer steps done, skipped ones and those before included."""
    skipped_steps: int
    """Steps without an update, because something in them was not finite or had no target."""
    first_loss: float | None
    """Cross-entropy of the first step, in nats per token; None before it."""
    last_loss: float | None
    """Cross-entropy of the last step."""
    eval_loss: float | None
    """Cross-entropy of the last evaluation; None without one."""
    tokens: int
    """Tokens trained on."""
    tokens_per_s: float | None
    """Tokens of all steps but the first over their time, evaluations not counted."""
    step_s: float | None
    """Median duration of a step, without the first if there are others."""
    compute_share: dict[str, float]
    """Share of the time from the first step's end that each group computes."""
    shares: dict[str, Shares]
    """Utilisation, exposed communication and bubble of each group in the same time."""
    channel_bytes: dict[str, int]
    """What all workers sent on each channel per step: payloads, counts, sums."""
    channel_messages: dict[str, int]
    """In how many messages per step."""
    hops: dict[str, HopFigures]
    """Rows and bytes per step between attention and experts: `inter`, across the network; `intra`,
    inside hosts, with `parallel.dedupe = "node"`."""
    mfu: float | None
    """Model FLOPs over peak FLOPs; None where the peak of the hardware is not known."""
    peak_memory_bytes: dict[str, int]
    """Largest memory of each worker."""
    peak_memory_total_bytes: int
    """Largest resident memory of all processes of the run together: this script, the driver, the
    workers and Ray. Shared pages count once per process. In a Ray that is not the run's own: of
    this script, and the largest of each worker."""
    placement: dict[str, dict[str, Any]]
    """Of each worker: host, Ray's id of the node, process id, number of its GPU on the node, name
    of its device, and the network devices that are its own."""
    versions: dict[str, str]
    """Of Python and the libraries that decide the numbers."""
    restarts: dict[str, int]
    """How often the workers were started again, by the cause."""
    first_error: str | None
    """Why the run failed, or was stopped without saving its last state: the first cause, then what
    followed from it."""
    checkpoint: str | None
    """The last complete checkpoint; None where there is none."""
    elapsed_s: float
    """From the call to the end, start-up included."""
    path: str
    """The run directory."""

    def to_json(self) -> str:
        """Return it as one line of JSON. Numbers that are not finite become null."""
        return json.dumps(finite(asdict(self)), allow_nan=False)

    @classmethod
    def load(cls, run_dir: str | Path) -> "Result":
        """Read the result of the run in `run_dir`. Raises ConfigError where there is none."""
        file = Path(run_dir) / RESULT_FILE
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"{run_dir} holds no {RESULT_FILE}; it appears when a run ends: {error.strerror}"
            ) from error
        except ValueError as error:
            raise ConfigError(f"{file} is not JSON: {error}") from error
        names = {field.name for field in fields(cls)}
        if not isinstance(values, dict) or values.keys() != names:
            raise ConfigError(f"{file} is not the result of a run of this version")
        values["hops"] = {hop: HopFigures(**one) for hop, one in values["hops"].items()}
        values["shares"] = {group: Shares(**one) for group, one in values["shares"].items()}
        return cls(**values)


def has_result(run_dir: Path) -> bool:
    """Whether a run in `run_dir` has ended and said how."""
    return (run_dir / RESULT_FILE).is_file()


class RunFailedError(WorkerError):
    """A run that failed; `result` says how far it came."""

    def __init__(self, result: Result) -> None:
        super().__init__(result.first_error or "the run failed")
        self.result = result


def finite(value: Any) -> Any:
    """Return nested `value` with None in place of floats that JSON cannot say."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return None
    return value
