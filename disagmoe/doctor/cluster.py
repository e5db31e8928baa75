"""The Ray that runs here would use: its address, its token, and what its nodes offer."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from disagmoe.cluster.bundles import SIDE_NAMES, cluster_bundles
from disagmoe.cluster.explain import busy, infeasible
from disagmoe.cluster.matching import all_placed, in_total, now_free
from disagmoe.cluster.nearest import nearest_fit
from disagmoe.cluster.nodes import NODE_RESOURCES, Holder, Node
from disagmoe.config.run import RunConfig
from disagmoe.doctor.finding import Finding
from disagmoe.schedule.layout import Side

_RAYS_OWN = "ray.io/"
"""Prefix of labels that Ray itself gives to nodes."""


def token_finding(environ: Mapping[str, str], home: Path) -> Finding:
    """Say what this process shows a Ray that asks for a token; never the token itself."""
    file = Path(environ.get("RAY_AUTH_TOKEN_PATH") or home / ".ray/auth_token")
    mode = environ.get("RAY_AUTH_MODE", "")
    if environ.get("RAY_AUTH_TOKEN"):
        source = "RAY_AUTH_TOKEN"
    else:
        source = str(file) if file.is_file() else ""
    if mode == "token" and not source:
        return Finding(
            subject="auth token",
            level="problem",
            found=f"RAY_AUTH_MODE = token, but neither RAY_AUTH_TOKEN nor {file} has one",
            advice="on the head `ray get-auth-token --generate` prints one; give all nodes the "
            "same",
        )
    if environ.get("RAY_AUTH_TOKEN_PATH") and not file.is_file():
        return Finding(
            subject="auth token",
            level="problem",
            found=f"RAY_AUTH_TOKEN_PATH = {file} is no file",
            advice="correct or unset it",
        )
    found = f"from {source}" if source else "none; fine for a Ray that asks for none"
    return Finding(subject="auth token", level="ok", found=f"{found}; mode {mode or 'not set'}")


def role_findings(nodes: Sequence[Node]) -> Iterator[Finding]:
    """Say how many nodes offer what, and what is missing for a run on a cluster."""
    offered = {
        side: sum(node.total.get(name, 0) >= 1 for node in nodes)
        for side, name in NODE_RESOURCES.items()
    }
    plain = sum(not any(node.total.get(name) for name in NODE_RESOURCES.values()) for node in nodes)
    kinds = [f"{count} for {SIDE_NAMES[side]}" for side, count in offered.items() if count]
    kinds += [f"{plain} for neither"] if plain else []
    found = f"{len(nodes)} node{'s' if len(nodes) != 1 else ''}: {', '.join(kinds)}"
    if offered[Side.COLOCATED] or (offered[Side.ATTENTION] and offered[Side.EXPERT]):
        yield Finding(subject="nodes", level="ok", found=found)
    else:
        yield Finding(
            subject="nodes",
            level="note",
            found=found,
            advice='cluster.mode = "cluster" needs nodes of both kinds: `ray start --resources '
            "'{\"attention_node\": 1}'` on some, expert_node on others",
        )
    for node in nodes:
        yield Finding(subject=f"node {node.id[:8]}", level="ok", found=_content(node))


def _content(node: Node) -> str:
    names = ("CPU", "GPU", *NODE_RESOURCES.values())
    parts = [
        f"{name} {node.free.get(name, 0):g} of {node.total[name]:g} free"
        for name in names
        if node.total.get(name)
    ]
    parts += [f"accelerator {kind}" for kind in node.accelerators]
    parts += [f"label {k}={v}" for k, v in node.labels.items() if not k.startswith(_RAYS_OWN)]
    return f"{node.host}: {', '.join(parts) or 'nothing'}"


def run_finding(
    config: RunConfig, nodes: Sequence[Node], holders: Mapping[str, Sequence[Holder]]
) -> Finding:
    """Say whether `nodes` can hold the resolved `config`, which `with_nodes` has gone over."""
    asked = cluster_bundles(config)
    if not all_placed(asked, nodes, in_total):
        text, _, advice = infeasible(asked, nodes, nearest_fit(config, nodes)).rpartition("\n")
        return Finding(subject="this run", level="problem", found=text, advice=advice)
    if not all_placed(asked, nodes, now_free):
        return Finding(
            subject="this run",
            level="note",
            found=busy(asked, nodes, holders),
            advice="end what holds them, or wait for them: --set cluster.wait_s=3600",
        )
    return Finding(subject="this run", level="ok", found=f"fits, on {len(asked)} nodes")
