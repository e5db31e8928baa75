"""`disagmoe config`: what can be set, and a file to start from."""

from pathlib import Path
from typing import Annotated

import typer

from disagmoe.config.explain import explain as explain_settings
from disagmoe.config.explain import markdown as settings_markdown
from disagmoe.config.starter import starter_toml
from disagmoe.errors import ConfigError

app = typer.Typer(no_args_is_help=True, help="Explain the settings of a run; start a config file.")


@app.command()
def explain(
    key: Annotated[
        str | None,
        typer.Argument(metavar="KEY", help="A setting or table, such as train.optimizer.lr."),
    ] = None,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print all of it as Markdown (docs/config.md).")
    ] = False,
) -> None:
    """Print legal values, default and meaning of every setting, or of KEY and all below it."""
    if markdown and key is not None:
        raise typer.BadParameter("--markdown prints all settings; leave out KEY")
    typer.echo(settings_markdown() if markdown else explain_settings(key), nl=False)


@app.command()
def init(
    out: Annotated[Path, typer.Option("--out", help="The file to write.")] = Path("run.toml"),
) -> None:
    """Write a commented config that trains a small model, to be changed at will."""
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(starter_toml(str(out)))
    except FileExistsError:
        raise ConfigError(
            "exists and is left as it is; name another file with --out", source=str(out)
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", source=str(out)) from None
    typer.echo(f"wrote {out}; its [data] table names the tokens to train on")
