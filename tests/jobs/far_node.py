"""Runs of `test_far_nodes`, in the namespace of one of its nodes: rounds on a fast and on a slow link, as JSON."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import ray
import torch
from lightning.pytorch import LightningModule

import raylfl


class Wide(LightningModule):
    """A network of a million parameters on the first 64 of a sample's numbers."""

    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(64, 16384), torch.nn.ReLU(), torch.nn.Linear(16384, 2))

    def forward(self, x):
        return self.body(x[:, :64])

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self(x), y)


def config(data, rounds):
    """Four pinned clients, all of which take part."""
    return {
        "rounds": rounds,
        "num_clients": 4,
        "model": {"class_path": "tests.jobs.far_node.Wide"},
        "data": {"name": "npy", "init_args": {"path": str(data)}},
        "partition": {"name": "iid"},
        "participation": {"name": "full"},
        "local": {"steps": 1, "batch_size": 2, "lr": 0.01},
        "eval": {"every": 0, "inconsistency": False},
        "checkpoint": {"every": 0},
        "logging": {"report": False},
    }


def on_link(interface):
    """(bytes received, bytes sent) on the link since it exists, as the kernel counts them."""
    folder = Path("/sys/class/net") / interface / "statistics"
    return np.array([int((folder / f"{way}_bytes").read_text()) for way in ("rx", "tx")])


def rounds_of(data, runs, rounds, interface):
    """(bytes that crossed, seconds and bytes that the kernel counted, of each round; the parameters)."""
    rows, counts = [], []

    class Count(raylfl.Callback):
        def on_run_start(self, config, run_dir):
            counts.append(on_link(interface))

        def on_round_end(self, round, metrics, params):
            counts.append(on_link(interface))
            kernel = (counts[-1] - counts[-2]).tolist()
            crossed, seconds = (metrics[name] for name in ("traffic/between_nodes_bytes", "time/round"))
            rows.append({"crossed": crossed, "seconds": seconds, "kernel": kernel})

    overrides = ["runtime.workers=2", "runtime.placement=pinned", f"logging.dir={runs}"]
    return rows, raylfl.run(config(data, rounds), overrides, callbacks=[Count()]).params


def main(address, ip, interface, data, runs, rate, rounds):
    ray.init(address=address, _node_ip_address=ip, log_to_driver=False, logging_level="ERROR")
    try:
        np.load(Path(data) / "train_x.npy")
        loaded = True
    except MemoryError:
        loaded = False
    fast, params = rounds_of(data, runs, int(rounds), interface)
    limit = ["tc", "qdisc", "replace", "dev", interface, "root", "tbf", "rate", rate, "burst", "64kb", "latency", "1s"]
    subprocess.run(limit, check=True)
    slow, again = rounds_of(data, runs, int(rounds), interface)
    nodes = len({node["NodeID"] for node in ray.nodes() if node["Alive"]})
    torch.save(params, Path(runs) / "params.pt")
    print(
        json.dumps({"loaded": loaded, "nodes": nodes, "same": torch.equal(params, again), "fast": fast, "slow": slow})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
