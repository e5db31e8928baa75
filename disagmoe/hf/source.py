"""The files of a Transformers model: settings, weights read one tensor at a time, what is carried.

Weights are in one `model.safetensors`, or in several files that an index names.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from disagmoe.errors import ConfigError, DataError

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
CARRIED = (
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Files beside the weights that go along unchanged."""


def read_settings(directory: Path) -> dict[str, Any]:
    """Return `config.json`. Raises DataError where it is missing, empty or no JSON object."""
    settings = _read_json(directory / CONFIG)
    if "text_config" in settings:
        raise ConfigError(
            f"{directory / CONFIG}: describes a model of text and more (text_config); only models "
            "of text alone are supported"
        )
    return settings


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise DataError(f"{path}: is no JSON ({error}); download it again") from None
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds no JSON object; download it again")
    return content


def carry(source: Path, target: Path) -> list[str]:
    """Copy `config.json` and what belongs to the tokenizer; return the names."""
    names = [name for name in (CONFIG, *CARRIED) if (source / name).is_file()]
    target.mkdir(parents=True, exist_ok=True)
    for name in names:
        shutil.copyfile(source / name, target / name)
    return names


@dataclass(frozen=True, slots=True)
class Weights:
    """All tensors of a model, on disk."""

    file_of: dict[str, Path]
    """By tensor name, in the order of files."""
    shape_of: dict[str, tuple[int, ...]]

    @classmethod
    def open(cls, directory: Path) -> "Weights":
        """Read the headers of all files.

        Raises DataError where files are missing or broken, hold a tensor twice, or do not hold what
        the index says.
        """
        file_of: dict[str, Path] = {}
        shape_of: dict[str, tuple[int, ...]] = {}
        for path, promised in _files(directory).items():
            with opened(path) as file:
                for name in file.keys():  # noqa: SIM118 - not a dict
                    if name in file_of:
                        raise DataError(f"{path}: holds {name}, as {file_of[name].name} does")
                    file_of[name] = path
                    shape_of[name] = tuple(file.get_slice(name).get_shape())
            lacking = sorted(promised - file_of.keys())
            if lacking:
                raise DataError(f"{path}: lacks {lacking[0]}, which {INDEX} says it holds")
        return cls(file_of, shape_of)

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield every tensor once, one at a time."""
        with ExitStack() as stack:
            current, file = None, None
            for name, path in self.file_of.items():
                if path != current:
                    stack.close()
                    current, file = path, stack.enter_context(opened(path))
                assert file is not None
                yield name, file.get_tensor(name)

    def tensor(self, name: str) -> torch.Tensor:
        """Return one tensor."""
        with opened(self.file_of[name]) as file:
            tensor: torch.Tensor = file.get_tensor(name)
            return tensor


def _files(directory: Path) -> dict[Path, set[str]]:
    """Files of weights, with the tensors that the index promises in each."""
    index = directory / INDEX
    if not index.is_file():
        single = directory / SINGLE
        if not single.is_file():
            raise DataError(f"{directory}: holds neither {SINGLE} nor {INDEX}")
        return {single: set()}
    weight_map = _read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise DataError(f"{index}: holds no weight_map")
    files: dict[Path, set[str]] = {}
    for name, file in weight_map.items():
        files.setdefault(directory / str(file), set()).add(str(name))
    return files


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """Open a file of tensors. Raises DataError where it is missing or broken."""
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: is missing") from None
    except SafetensorError as error:
        raise DataError(f"{path}: is no whole safetensors file ({error})") from None
