"""`disagmoe data prepare`: plan, make the tokenizer, write shards on all cores, publish."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass

from disagmoe.data.manifest import (
    LISTED_BAD_RECORDS,
    MANIFEST,
    TOKENIZER,
    Manifest,
    TokenizerKind,
    read_manifest,
)
from disagmoe.data.plan import Plan, PrepareOptions, make_plan
from disagmoe.data.pool import map_unordered
from disagmoe.data.records import refuse
from disagmoe.data.sample import sample_texts
from disagmoe.data.shard import ShardJob, ShardResult, write_shard
from disagmoe.data.tokenizer import DocumentTokenizer
from disagmoe.data.workdir import (
    FinishedShard,
    after_failure,
    check_output,
    check_same,
    enter,
    finished_shards,
    publish,
    working_directory,
    write_note,
)
from disagmoe.errors import DataError, StorageError
from disagmoe.storage import Location


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a preparation is."""

    stage: str
    """`tokenizer` while a BPE is trained, then `shards`."""
    shards_done: int
    shards: int
    input_bytes_done: int
    input_bytes: int
    text_bytes_per_s: float
    """Text tokenised by this run per second since its first shard began."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a preparation gave."""

    manifest: Manifest
    already_prepared: bool
    """The output was there before, made from the same input in the same way."""
    kept_shards: int
    """Shards that an interrupted run had finished."""
    elapsed_s: float
    text_bytes_per_s: float
    """Text tokenised by this run per second; 0 when nothing was left to do."""


def prepare(options: PrepareOptions, on_progress: Callable[[Progress], None]) -> Outcome:
    """Prepare data as asked, or go on where an interrupted run of the same kind stopped.

    Raises DataError for input that cannot be used and for an output that holds something else.
    """
    out = Location.parse(options.out)
    plan = make_plan(options)
    try:
        return _prepare(plan, options, out, on_progress)
    except OSError as error:
        raise DataError(f"--out {out}: cannot be written ({error})") from error


def _prepare(
    plan: Plan, options: PrepareOptions, out: Location, on_progress: Callable[[Progress], None]
) -> Outcome:
    started = time.monotonic()
    work = working_directory(out)
    check_output(out)
    if (out / MANIFEST).is_file():
        manifest = _complete(out, plan, options)
        return Outcome(manifest, True, 0, time.monotonic() - started, 0.0)
    if (work / MANIFEST).is_file():  # interrupted while it was being published
        manifest = _complete(work, plan, options)
        publish(work, out)
        return Outcome(manifest, False, len(manifest.shards), time.monotonic() - started, 0.0)
    enter(work, plan)
    kept = finished_shards(work, plan)
    try:
        tokenizer = _tokenizer(work, plan, options, on_progress)
        run = _Run(plan, options, work, tokenizer, dict(kept), on_progress)
        run.write_missing_shards()
        manifest = _manifest(plan, tokenizer, run.finished)
    except (DataError, StorageError) as error:
        raise after_failure(work, plan, error) from error
    (work / MANIFEST).write_bytes(manifest.model_dump_json(indent=1).encode())
    publish(work, out)
    elapsed_s = time.monotonic() - started
    return Outcome(manifest, False, len(kept), elapsed_s, run.text_bytes_per_s)


def _complete(place: Location, plan: Plan, options: PrepareOptions) -> Manifest:
    """The manifest in `place`, when this preparation would give the same."""
    manifest = read_manifest(place)
    check_same(place, manifest.identity, plan.identity)
    if manifest.bad_records and not options.skip_bad_records:
        raise refuse(manifest.bad_record_list[0])
    return manifest


def _tokenizer(
    work: Location, plan: Plan, options: PrepareOptions, on_progress: Callable[[Progress], None]
) -> DocumentTokenizer:
    """The tokenizer of an earlier run, or a new one."""
    spec, place = options.tokenizer, work / TOKENIZER
    if place.is_file():
        return DocumentTokenizer.load(place.read_bytes(), kind=spec.kind, eod_token=spec.eod_token)
    if spec.kind == "bpe":
        on_progress(Progress("tokenizer", 0, len(plan.shards), 0, plan.input_bytes, 0.0))
    sample = sample_texts(
        plan,
        options.read,
        limit_bytes=spec.training_bytes,
        skip_bad_records=options.skip_bad_records,
    )
    tokenizer = spec.build(sample)
    place.write_bytes(tokenizer.json)
    return tokenizer


class _ShardWriter:
    """Lives in a process of the pool and writes one shard after the other."""

    def __init__(self, json: bytes, kind: TokenizerKind, eod_token: str) -> None:
        # The pool has one process per core; threads of the library would only compete with them.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        self._tokenizer = DocumentTokenizer.load(json, kind=kind, eod_token=eod_token)

    def __call__(self, job: ShardJob) -> tuple[int, ShardResult]:
        return job.index, write_shard(job, self._tokenizer)


@dataclass(slots=True)
class _Run:
    """The shards of one run: which are finished, and how fast it goes."""

    plan: Plan
    options: PrepareOptions
    work: Location
    tokenizer: DocumentTokenizer
    finished: dict[int, FinishedShard]
    on_progress: Callable[[Progress], None]
    text_bytes_per_s: float = 0.0

    def write_missing_shards(self) -> None:
        """Write what is not finished, on all processes."""
        if not self.options.skip_bad_records:
            for shard in self.finished.values():
                if shard.bad:
                    raise refuse(shard.bad[0])
        entry = self.tokenizer.entry
        arguments = (self.tokenizer.json, entry.kind, entry.eod_token)
        jobs = list(self._jobs())
        started = time.monotonic()
        text_bytes = 0
        self._report()
        pool = map_unordered(_ShardWriter, arguments, jobs, self.options.processes)
        with closing(pool) as results:
            for index, result in results:
                shard = FinishedShard(entry=result.entry, bad=result.bad)
                write_note(self.work, index, shard)
                self.finished[index] = shard
                text_bytes += result.entry.text_bytes
                self.text_bytes_per_s = text_bytes / max(time.monotonic() - started, 1e-9)
                self._report()

    def _jobs(self) -> Iterator[ShardJob]:
        for index, pieces in enumerate(self.plan.shards):
            if index not in self.finished:
                options = self.options
                yield ShardJob(
                    index, pieces, str(self.work), options.read, options.skip_bad_records
                )

    def _report(self) -> None:
        done = sum(shard.entry.input_bytes for shard in self.finished.values())
        counts = (len(self.finished), len(self.plan.shards), done, self.plan.input_bytes)
        self.on_progress(Progress("shards", *counts, self.text_bytes_per_s))


def _manifest(
    plan: Plan, tokenizer: DocumentTokenizer, finished: dict[int, FinishedShard]
) -> Manifest:
    shards = [finished[index] for index in range(len(plan.shards))]
    entries = [shard.entry for shard in shards]
    documents = sum(entry.documents for entry in entries)
    bad = [*plan.bad, *(record for shard in shards for record in shard.bad)]
    bad_records = len(plan.bad) + sum(entry.bad_records for entry in entries)
    if documents == 0:
        found = f"; the first of {bad_records} bad records: {bad[0]}" if bad else ""
        files = len(plan.identity.sources)
        raise DataError(f"the input holds no document ({files} files){found}")
    return Manifest(
        identity=plan.identity,
        tokenizer=tokenizer.entry,
        token_type="uint16" if tokenizer.entry.vocab_size <= 2**16 else "uint32",
        documents=documents,
        tokens=sum(entry.tokens for entry in entries),
        text_bytes=sum(entry.text_bytes for entry in entries),
        cut_documents=sum(entry.cut_documents for entry in entries),
        bad_records=bad_records,
        bad_record_list=bad[:LISTED_BAD_RECORDS],
        shards=entries,
    )
