"""The data of a workload: raylfl's data set and shards, and the same as arrays for the other sides."""

import json
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.peers.definitions import SOURCES, PeerWorkload

FILES = ("train_x", "train_y", "test_x", "test_y", "shards")


@dataclass(frozen=True)
class Arrays:
    """Training and test images float32 [n, C, H, W] with labels int64 [n], and the samples of each client [N, n/N]."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    shards: Tensor

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """The images and labels of a client."""
        return self.train_x[self.shards[index]], self.train_y[self.shards[index]]


def choose(workload: PeerWorkload) -> tuple[str, dict[str, Any]]:
    """The data that RAYLFL_DATA has for a workload: (their name, `data` of a config); else synthetic images."""
    root = Path(os.environ.get("RAYLFL_DATA", "~/.cache/raylfl")).expanduser()
    for title, (file, config) in SOURCES[workload.data].items():
        if (root / file).exists():
            return title, config
    sizes = {"shape": list(workload.shape), "num_train": workload.samples, "num_test": 10_000}
    return "synthetic images: accuracy not comparable", {"name": "synthetic_images", "init_args": sizes}


def prepare(workload: PeerWorkload, folder: Path) -> str:
    """Writes the arrays of a workload into the folder, unless they are there; returns the name of the data."""
    from raylfl.config.load import load_config
    from raylfl.experiment.assemble import make_split
    from raylfl.experiment.data_source import load_data

    title, data = choose(workload)
    about = folder / "about.json"
    if about.exists() and json.loads(about.read_text()) == {"data": title}:
        return title
    folder.mkdir(parents=True, exist_ok=True)
    config = load_config(workload.run_config(data, 1, 1))
    source = load_data(config)
    (train_x, train_y), (test_x, test_y) = source.data.train_dataset.tensors, source.data.test_dataset.tensors
    transform = getattr(source.data, "test_transform", None) or torch.Tensor.float
    orders = np.random.default_rng(0)  # a side that does not shuffle takes the samples of a client in this order
    shards = np.stack([orders.permutation(client) for client in make_split(config, source).clients])
    arrays = (transform(train_x), train_y, transform(test_x), test_y, torch.from_numpy(shards))
    for name, array in zip(FILES, arrays, strict=True):
        np.save(folder / f"{name}.npy", array.numpy())
    about.write_text(json.dumps({"data": title}))
    return title


@cache
def load(folder: Path) -> Arrays:
    """Maps the arrays of a folder into memory, once in each process."""
    return Arrays(*(torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c")) for name in FILES))
