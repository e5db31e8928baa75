"""The text that a BPE is trained on: bounded, spread over the input, decided by the plan alone."""

from collections.abc import Iterator

from disagmoe.data.plan import Plan
from disagmoe.data.records import Document, ReadOptions, refuse
from disagmoe.data.shard import read_records


def sample_texts(
    plan: Plan, options: ReadOptions, *, limit_bytes: int, skip_bad_records: bool
) -> Iterator[str]:
    """First documents of every shard, each shard giving an equal share of `limit_bytes`.

    All documents when they are smaller than that together. Raises DataError for a bad record unless
    these are skipped.
    """
    taken = 0
    for index, shard in enumerate(plan.shards):
        goal = limit_bytes * (index + 1) // len(plan.shards)
        records = (record for piece in shard for record in read_records(piece, options))
        for record in records if taken < goal else ():
            if isinstance(record, Document):
                taken += len(record.text.encode())
                yield record.text
            elif not skip_bad_records:
                raise refuse(record)
            if taken >= goal:
                break
