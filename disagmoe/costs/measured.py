"""The file that `disagmoe calibrate` writes: a machine as it was measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from disagmoe.costs.calibration import Calibration
from disagmoe.costs.hardware import Hardware, Precision
from disagmoe.costs.kernels import Machine
from disagmoe.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredMachine:
    """One worker's machine, and what was reached on it."""

    hardware: Hardware
    calibrations: Mapping[Precision, Calibration]
    """By the type of weights and activations."""

    def machine(self, precision: Precision) -> Machine:
        """The machine of a worker that computes in `precision`.

        Raises:
            ConfigError: nothing was measured in it.
        """
        found = self.calibrations.get(precision)
        if found is None:
            raise ConfigError(
                f"{self.hardware.name} was calibrated in {', '.join(self.calibrations)}, and the "
                f"run computes in {precision}; calibrate with --precision {precision}, or set "
                "train.precision"
            )
        return Machine(hardware=self.hardware, calibration=found, precision=precision)


_FORM = TypeAdapter(MeasuredMachine)


def write_machine(path: Path, machine: MeasuredMachine) -> None:
    """Write `machine` whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(_FORM.dump_json(machine, indent=2) + b"\n")
    partial.replace(path)


def read_machine(path: str) -> MeasuredMachine:
    """Return what is in the file `path`.

    Raises:
        ConfigError: there is no such file, or it is of another kind or version.
    """
    try:
        return _read(path, Path(path).stat().st_mtime_ns)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}; `disagmoe calibrate --out {path}` writes it on a machine of "
            "the kind that is planned for"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(
            f"{path} is no file of `disagmoe calibrate` of this version: {where or 'all of it'}: "
            f"{first['msg']}"
        ) from error


@lru_cache(maxsize=8)
def _read(path: str, changed_ns: int) -> MeasuredMachine:
    """A search asks for its machines hundreds of times."""
    del changed_ns
    return _FORM.validate_json(Path(path).read_bytes())
