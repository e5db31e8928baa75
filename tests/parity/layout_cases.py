"""Layouts of the tiny network that whole steps are tried in."""

from typing import Any

import pytest

LAYOUTS: dict[str, dict[str, Any]] = {
    "serial": {"parallel__schedule": "serial"},
    "M2 N1": {"parallel__attention_workers": 2},
    "M1 N2": {"parallel__expert_workers": 2},
    "M3 N3": {"parallel__attention_workers": 3, "parallel__expert_workers": 3},
    "M2 N4 no dedupe": {
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 4,
        "parallel__dedupe": "none",
    },
    "M2 N3 two hops": {
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 3,
        "parallel__dedupe": "node",
        "parallel__workers_per_host": 2,
    },
    "p2 M2 N4 two hops fused": {
        "parallel__groups": 2,
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 4,
        "parallel__dedupe": "node",
        "parallel__workers_per_host": 2,
    },
    "p2 direct": {"parallel__groups": 2, "parallel__residual": "direct"},
    "p2 M2 N2 fused": {
        "parallel__groups": 2,
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
    },
    "p3 M3 N1 direct": {
        "model__layers": 4,
        "parallel__groups": 3,
        "parallel__attention_workers": 3,
        "parallel__residual": "direct",
    },
    "p3 N2 fused": {"model__layers": 4, "parallel__groups": 3, "parallel__expert_workers": 2},
    "R2 M2 N1": {"parallel__rings": 2, "parallel__attention_workers": 2},
    "R3": {"parallel__rings": 3},
    "colocated alone": {"parallel__schedule": "ep_1f1b"},
    "colocated 2": {
        "parallel__schedule": "ep_overlap",
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
    },
    "colocated p2 of 2": {
        "parallel__schedule": "ep_1f1b",
        "parallel__groups": 2,
        "parallel__attention_workers": 2,
        "parallel__expert_workers": 2,
    },
}
FEW = ["M2 N1", "M1 N2", "p2 M2 N2 fused", "p2 direct", "colocated 2"]

layouts = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
few_layouts = pytest.mark.parametrize("layout", [LAYOUTS[name] for name in FEW], ids=FEW)
