"""The models of `configs/models`, and what their publishers say of them."""

from pathlib import Path

from disagmoe.config.load import load_model

FOLDER = Path(__file__).resolve().parents[3] / "configs" / "models"
MODELS = {path.stem: load_model(path) for path in sorted(FOLDER.glob("*.toml"))}

PUBLISHED_B = {
    "deepseek-moe-16b": (16.4, 2.8),
    "deepseek-v2-lite": (15.7, 2.4),
    "deepseek-v2": (236, 21),
    "deepseek-v3": (671, 37),
    "qwen3-30b-a3b": (30.5, 3.3),
    "qwen3-235b-a22b": (235, 22),
    "gpt-oss-20b": (20.9, 3.6),
    "gpt-oss-120b": (116.8, 5.1),
    "mixtral-8x7b": (46.7, 12.9),
    "mixtral-8x22b": (141, 39),
    "qwen1.5-moe-a2.7b": (14.3, 2.7),
    "olmoe-1b-7b": (6.9, 1.3),
    "kimi-k2": (1026, 32.6),
    "glm-4.5": (355, 32),
    "glm-4.5-air": (106, 12),
}
"""Total and active parameters in billions, from model cards and reports."""
