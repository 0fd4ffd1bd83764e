"""The sentence on where clients, their data and the server of a run on Ray are, in its first lines."""

from __future__ import annotations

from collections.abc import Sequence

from raylfl.experiment.parts import Experiment
from raylfl.runtime.ray.stored import StoredExperiment


def location_line(
    experiment: Experiment, stored: StoredExperiment, device: str, nodes: Sequence[str | None], server: str
) -> str:
    """The sentence for a run with this stored experiment.

    device: the name of a worker's device. nodes: the id of each worker's node, None for a worker that is still
    starting. server: the server's place as a text such as ` on node gpu3 (10.0.0.3)`, empty on a cluster of one node.
    """
    placement = stored.placement
    share, peers = experiment.config.runtime.gpus, experiment.algorithm.pattern.peers
    clients = "1 client that owns all data" if experiment.setup.merged else counted(experiment.clients, "client")
    anywhere = placement.name == "shared" and len(nodes) > 1
    clients += " in blocks on" if peers else " on any of" if anywhere else " on"
    each = f"{'one GPU' if share == 1 else f'{share:g} GPUs'} each ({device})" if share else "on CPUs"
    known = {node for node in nodes if node is not None}
    on_nodes = f" on {counted(len(known), 'node')}" + " so far" * (None in nodes)
    reads = "reads only its own clients' samples" if placement.name == "pinned" else "can read all samples"
    size = f"{stored.sample_bytes / 1e6:,.1f} MB"
    keeps = f", which keeps all samples ({size}) in its object store" if stored.sample_bytes else ""
    return (
        f"{clients} {counted(len(nodes), 'worker')}, {each},{on_nodes}; each worker {reads}; "
        f"the server{server or ' on the same node'}{keeps}"
    )


def counted(count: int, what: str) -> str:
    """A number with its noun `what`, in the plural unless it is 1: `1 worker`, `2 workers`."""
    return f"{count} {what}{'s' * (count != 1)}"
