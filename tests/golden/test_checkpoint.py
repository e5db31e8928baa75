"""What the files of a checkpoint hold, by name: all that a run needs to go on, and no more."""

from collections.abc import Callable
from pathlib import Path

from safetensors import safe_open

from disagmoe.data.source import FixedSource
from disagmoe.model.names import saved_shapes
from disagmoe.runtime.threads import ThreadedRun
from disagmoe.storage import Location
from tests.unit.runtime.tiny import batch_of, tiny


def test_what_is_in_a_checkpoint(golden: Callable[[str, str], None], tmp_path: Path) -> None:
    """Balance biases are; gradients, counts of choices and other things of one step are not."""
    config = tiny(
        model__family="deepseek_v3",
        model__kv_heads=2,
        model__kv_lora_rank=6,
        model__qk_nope_head_dim=4,
        model__qk_rope_head_dim=2,
        model__shared_width=8,
        model__dense_layers=1,
        model__dense_width=10,
        model__experts=3,
        parallel__attention_workers=2,
        parallel__expert_workers=2,
        train__precision="bf16",
        train__steps=1,
    )
    run = ThreadedRun(
        config, FixedSource([batch_of(config)]), checkpoints=Location.parse(str(tmp_path))
    )
    run.each(lambda runtime: runtime.run_step(0))
    parts = run.each(lambda runtime: runtime.saved(1))
    run.close()
    texts = []
    held: set[str] = set()
    for part in parts.values():
        file = tmp_path / "step-1" / part.part.file.name
        with safe_open(file, "pt") as opened:
            lines = sorted(
                f"{name} {opened.get_slice(name).get_dtype()} {opened.get_slice(name).get_shape()}"
                for name in opened.keys()  # noqa: SIM118 - it is no mapping
            )
            held |= {name.partition("/")[2] for name in opened.keys()}  # noqa: SIM118
        texts.append("\n".join([f"# {file.name}", *lines, ""]))
    assert held == {*saved_shapes(config.model), "cpu"}
    golden("checkpoint.txt", "\n".join(texts))
