"""Which steps are traced."""

from pydantic import Field

from disagmoe.config.base import Section


class TraceConfig(Section):
    """What each worker did when, in `trace.json.gz` of the run directory; Perfetto opens it."""

    first_step: int = Field(default=3, ge=0)
    """First traced step, from 0; the very first steps are slower for reasons of their own, and
    `parallel.profile` changes the schedule after step 2."""
    steps: int = Field(default=2, ge=0)
    """Steps that are traced; 0 traces none."""

    def covers(self, step: int) -> bool:
        """Whether `step`, from 0, is traced."""
        return self.first_step <= step < self.first_step + self.steps
