"""Training over NCCL's transport, in processes, against the one-process reference.

    python tests/nccl/run_invariance.py --json

The library is the stand-in of this folder. `--cases N` tries the first N layouts alone, `--only I`
the one with this number in the list, counted from 0; it may be repeated.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402 - after the path to what is tested

from disagmoe.config.load import load_run_config  # noqa: E402
from disagmoe.runtime.invariance.fleet import ProcessFleet  # noqa: E402
from disagmoe.runtime.invariance.layouts import Case  # noqa: E402
from disagmoe.runtime.invariance.run import Outcome, Verdict, run_invariance  # noqa: E402
from tests.nccl.rig import Standin  # noqa: E402
from tests.nccl.server import StandinServer  # noqa: E402

CONFIG = ROOT / "configs" / "tiny.toml"
LIBRARY = "stand-in"


def cases() -> list[Case]:
    """M and N up to 4, p up to 2, all schedules, one and two hops, each with a twin on inproc for
    the bits."""
    split = [
        Case(micro_batches=4, in_flight=4),
        Case(micro_batches=4, attention=2, experts=3, in_flight=4),
        Case(micro_batches=2, attention=3, experts=2, in_flight=2),
        Case(micro_batches=4, attention=3, experts=3, in_flight=4, split_backward=True),
        Case(micro_batches=4, attention=1, experts=3, in_flight=2, dedupe="none"),
        Case(micro_batches=4, attention=3, experts=1, schedule="serial"),
        Case(micro_batches=4, attention=2, experts=2, in_flight=4, aux_scope="micro_batch"),
        Case(micro_batches=4, groups=2, in_flight=4),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=4, residual="direct"),
        Case(micro_batches=2, groups=2, attention=3, experts=3, in_flight=2),
        Case(micro_batches=2, groups=2, attention=2, experts=1, schedule="serial"),
        Case(micro_batches=2, rings=2, attention=2, experts=2, in_flight=2),
    ]
    colocated = [
        Case(micro_batches=4, schedule="ep_1f1b"),
        Case(micro_batches=4, attention=3, experts=3, schedule="ep_1f1b"),
        Case(micro_batches=4, attention=2, experts=2, in_flight=2, schedule="ep_overlap"),
        Case(micro_batches=4, groups=2, attention=2, experts=2, in_flight=4, schedule="ep_overlap"),
        Case(micro_batches=4, groups=2, attention=2, experts=2, schedule="ep_1f1b"),
    ]
    # hosts of two expert workers; the last one of three is alone
    sizes = {"micro_batches": 4, "in_flight": 4, "dedupe": "node", "workers_per_host": 2}
    two_hops = [
        Case(attention=2, experts=4, **sizes),
        Case(attention=1, experts=3, split_backward=True, **sizes),
        Case(groups=2, attention=1, experts=2, residual="fused", **sizes),
        Case(groups=2, attention=1, experts=3, residual="direct", **sizes),
        Case(attention=4, experts=4, schedule="ep_overlap", **sizes),
    ]
    return split + colocated + two_hops


def pairs(chosen: list[Case]) -> Iterator[Case]:
    """Each case on inproc and over NCCL, whose bits must be equal."""
    for case in chosen:
        fields = {name: getattr(case, name) for name in case.__slots__}
        yield case
        yield Case(**{**fields, "transport": "nccl"})


def run(chosen: list[Case]) -> tuple[Verdict, list[str]]:
    """Return the verdict, and the rules of NCCL that were broken."""
    server = StandinServer()
    most = max(case.rings * case.groups * (case.attention + case.experts) for case in chosen)
    config = load_run_config(CONFIG, ())
    with closing(server), closing(ProcessFleet(most, Standin(server.address, 1e-4))) as fleet:
        verdict = run_invariance(config, list(pairs(chosen)), _report, {"nccl": fleet})
    return verdict, server.violations


def _report(outcome: Outcome) -> None:
    state = "ok" if outcome.ok else f"OFF {outcome.worst} {outcome.unequal_bits[:3]}"
    sys.stderr.write(f"{outcome.case.name:<48} {outcome.rule.precision} {state}\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--cases", type=int, default=None, metavar="N", help="the first N layouts")
    parser.add_argument("--only", type=int, action="append", metavar="I", help="one layout")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # the processes import what unpickles their tasks from here
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    listed = cases()
    chosen = [listed[at] for at in arguments.only] if arguments.only else listed
    verdict, violations = run(chosen[: arguments.cases])
    seen = verdict.as_json()
    ok = verdict.ok and not violations
    if arguments.json:
        answer = {**seen, "ok": ok, "violations": violations, "library": LIBRARY}
        sys.stdout.write(json.dumps(answer) + "\n")
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
