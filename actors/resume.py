"""From a checkpoint to where workers go on, for whoever starts them, the first time or again."""

from disagmoe.actors.messages import ResumePoint
from disagmoe.checkpoint.find import Found
from disagmoe.data.position import DataPosition
from disagmoe.data.source import PreparedSource
from disagmoe.errors import CheckpointError


def resume_point(found: Found, source: PreparedSource) -> tuple[ResumePoint, list[str]]:
    """Return where a run whose data is `source`, at its beginning, goes on from `found`; and what
    is new about the data.

    Workers that are given it load the checkpoint before their first step (`Call("restore")`).

    Raises:
        CheckpointError: the manifest says nothing of the data that this version understands.
        DataError: a path holds other tokens than before.
    """
    manifest = found.manifest
    try:
        saved = DataPosition.model_validate(manifest.data)
    except ValueError as error:
        raise CheckpointError(
            f"{found.place}: the position of its data is not readable: {error}"
        ) from error
    origin, news = source.origin_after(manifest.step, saved)
    point = ResumePoint(
        place=str(found.place),
        done=manifest.done,
        origin=origin,
        programs_sha256=manifest.programs_sha256,
    )
    return point, news
