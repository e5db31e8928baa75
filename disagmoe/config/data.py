"""Where the tokens come from."""

from pydantic import Field

from disagmoe.config.base import Section


class DataConfig(Section):
    """Prepared token files and their mix."""

    paths: list[str] = Field(min_length=1)
    """Directories that `disagmoe data prepare` wrote."""
    document_masks: bool = False
    """Keep documents that are packed into one sequence apart: no token sees one of another
    document, positions start anew with each, and the first token of one is not predicted from the
    last of the one before."""
    weights: list[float] = Field(default_factory=list)
    """Share of sequences that each path gives, in any unit; empty means in proportion to size."""
