"""`disagmoe data prepare`: text, JSONL or Parquet in, tokens in Arrow files out."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from typer.core import TyperCommand

from disagmoe.errors import ConfigError
from disagmoe.units import MB, MIB, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from disagmoe.data.manifest import Manifest
    from disagmoe.data.prepare import Outcome, Progress
    from disagmoe.data.tokenizer import TokenizerSpec

app = typer.Typer(help="Prepare token files.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keep `prepare` a subcommand although it is the only one."""


class Format(StrEnum):
    """Formats of input files."""

    AUTO = "auto"
    TEXT = "text"
    JSONL = "jsonl"
    PARQUET = "parquet"


class OnBadRecord(StrEnum):
    """What to do about a record that is no document."""

    ERROR = "error"
    SKIP = "skip"


def repeat_option(arguments: list[str], names: tuple[str, ...]) -> list[str]:
    """Turn `--input a b c` into `--input a --input b --input c` for each option in `names`."""
    repeated: list[str] = []
    current: str | None = None
    fresh = False
    for argument in arguments:
        if argument.startswith("-"):
            current = argument if argument in names else None
            fresh = True
        elif current is not None and not fresh:
            repeated.append(current)
        else:
            fresh = False
            current = current if current in names else None
        repeated.append(argument)
    return repeated


class _GlobCommand(TyperCommand):
    """Lets the shell expand the globs of --input and --exclude."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, repeat_option(args, ("--input", "--exclude")))


@app.command("prepare", cls=_GlobCommand)
def prepare_command(
    inputs: Annotated[
        list[str],
        typer.Option("--input", metavar="GLOB...", help="Files, globs (`**` too) or URIs."),
    ],
    out: Annotated[str, typer.Option(help="Directory to make.")],
    exclude: Annotated[
        list[str],
        typer.Option(
            metavar="GLOB...", help="Paths to leave out; `*` also matches `/`.", show_default=False
        ),
    ] = [],  # noqa: B006  (typer copies it)
    tokenizer: Annotated[
        str, typer.Option(help="A tokenizer.json, `bpe` (trained on the input) or `bytes`.")
    ] = "bpe",
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Tokens of a trained BPE; 8192 if not given.", show_default=False),
    ] = None,
    sample_bytes: Annotated[
        int | None,
        typer.Option(help="Most text to train a BPE on; 64 MiB if not given.", show_default=False),
    ] = None,
    eod_token: Annotated[
        str | None,
        typer.Option(help="End-of-document token of a tokenizer file.", show_default=False),
    ] = None,
    format: Annotated[Format, typer.Option(help="`auto` goes by file names.")] = Format.AUTO,
    text_field: Annotated[str, typer.Option(help="JSON field or Parquet column.")] = "text",
    on_bad_record: Annotated[
        OnBadRecord, typer.Option(help="`skip` counts and lists bad records in the manifest.")
    ] = OnBadRecord.ERROR,
    processes: Annotated[
        int, typer.Option(min=0, help="Processes that tokenise; 0 takes one per core.")
    ] = 0,
    shard_bytes: Annotated[
        int, typer.Option(min=0, help="Input per shard; 0 takes 1/64, from 1 to 256 MiB.")
    ] = 0,
    max_document_bytes: Annotated[
        int, typer.Option(min=1, help="A longer text is cut into documents at line ends.")
    ] = 4 * MIB,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Tokenise text, JSONL or Parquet files into a directory that training reads.

    A text file is one document, and so is a line of JSONL and a row of Parquet. Files may be
    compressed (.gz, .zst, .bz2). The output does not depend on the number of processes. After an
    interrupt the same command goes on with the shards that are missing.
    """
    # pyarrow and tokenizers take half a second to import, which other commands should not pay
    from disagmoe.data.plan import PrepareOptions
    from disagmoe.data.prepare import prepare
    from disagmoe.data.records import ReadOptions

    options = PrepareOptions(
        inputs=inputs,
        out=out,
        excludes=exclude,
        tokenizer=_tokenizer_spec(tokenizer, vocab_size, sample_bytes, eod_token),
        format=format.value,
        read=ReadOptions(text_field=text_field, max_document_bytes=max_document_bytes),
        skip_bad_records=on_bad_record is OnBadRecord.SKIP,
        processes=processes or available_cores(),
        shard_bytes=shard_bytes,
    )
    try:
        with _progress() as show:
            outcome = prepare(options, show)
    except KeyboardInterrupt:
        typer.echo(
            f"interrupted; finished shards are kept in {out}.partial, and the same command goes on "
            "from there",
            err=True,
        )
        raise typer.Exit(130) from None
    for line in _summary(outcome, out):
        typer.echo(line, err=True)
    if as_json:
        typer.echo(json.dumps(_as_json(outcome, out)))


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _tokenizer_spec(
    tokenizer: str, vocab_size: int | None, sample_bytes: int | None, eod_token: str | None
) -> "TokenizerSpec":
    from disagmoe.data.tokenizer import TokenizerSpec

    if tokenizer in ("bpe", "bytes"):
        return TokenizerSpec(
            kind="bpe" if tokenizer == "bpe" else "bytes",
            vocab_size=vocab_size,
            sample_bytes=sample_bytes,
            eod_token=eod_token,
        )
    try:
        content = Path(tokenizer).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"--tokenizer {tokenizer}: cannot be read ({error}); expected the path of a "
            "tokenizer.json, bpe or bytes"
        ) from error
    return TokenizerSpec(
        kind="file",
        file=content,
        vocab_size=vocab_size,
        sample_bytes=sample_bytes,
        eod_token=eod_token,
    )


@contextmanager
def _progress() -> Iterator[Callable[["Progress"], None]]:
    """A live bar on a terminal, plain lines elsewhere; both on stderr."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda progress: typer.echo(_line(progress), err=True)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with RichProgress(*columns, console=console) as bar:
        task = bar.add_task("", total=None)

        def show(progress: "Progress") -> None:
            bar.update(
                task,
                description=_line(progress),
                completed=progress.input_bytes_done,
                total=progress.input_bytes if progress.stage == "shards" else None,
            )

        yield show


def _line(progress: "Progress") -> str:
    if progress.stage == "tokenizer":
        return "training the tokenizer"
    done = f"{progress.shards_done}/{progress.shards} shards"
    read = f"{format_bytes(progress.input_bytes_done)} of {format_bytes(progress.input_bytes)}"
    speed = progress.text_bytes_per_s
    return f"{done}, {read}" + (f", {speed / MB:.1f} MB/s" if speed else "")


def _summary(outcome: "Outcome", out: str) -> Iterator[str]:
    manifest = outcome.manifest
    if outcome.already_prepared:
        yield f"{out}: already prepared from this input"
    elif outcome.kept_shards:
        yield f"kept {outcome.kept_shards} shards of an interrupted run"
    for record in manifest.bad_record_list[:10]:
        yield f"skipped {record}"
    if manifest.bad_records > 10:
        yield f"skipped {manifest.bad_records} bad records in all, listed in {out}/manifest.json"
    if manifest.cut_documents:
        limit = format_bytes(manifest.identity.max_document_bytes)
        yield f"cut texts longer than {limit} in {manifest.cut_documents} places"
    yield _totals(outcome, manifest, out)


def _totals(outcome: "Outcome", manifest: "Manifest", out: str) -> str:
    speed = outcome.text_bytes_per_s
    return (
        f"{out}: {format_count(manifest.documents)} documents, "
        f"{format_count(manifest.tokens)} tokens "
        f"({manifest.text_bytes / manifest.tokens:.2f} bytes each), "
        f"vocabulary {manifest.tokenizer.vocab_size}, {len(manifest.shards)} shards, "
        f"{format_seconds(outcome.elapsed_s)}" + (f", {speed / MB:.1f} MB/s" if speed else "")
    )


def _as_json(outcome: "Outcome", out: str) -> dict[str, Any]:
    manifest = outcome.manifest
    return {
        "out": out,
        "already_prepared": outcome.already_prepared,
        "kept_shards": outcome.kept_shards,
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "text_bytes": manifest.text_bytes,
        "vocab_size": manifest.tokenizer.vocab_size,
        "eod_id": manifest.tokenizer.eod_id,
        "shards": len(manifest.shards),
        "cut_documents": manifest.cut_documents,
        "bad_records": manifest.bad_records,
        "fingerprint": manifest.fingerprint,
        "elapsed_s": outcome.elapsed_s,
        "text_mb_per_s": outcome.text_bytes_per_s / MB,
    }
