"""The one base of all config sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A frozen table of settings; unknown keys are refused, and each field has a docstring."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True, allow_inf_nan=False
    )
