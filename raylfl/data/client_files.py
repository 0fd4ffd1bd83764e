"""Client data that stay on the clients' machines: each client's arrays are in a folder that certain machines can read.

    python -m raylfl.data.client_files /data/private --node hospital_a > hospital_a.json

writes an index of the folders on one machine: names of clients, numbers of samples, shapes, dtypes and the number of
classes, but no sample. The process that starts a run reads the indexes only.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from raylfl.data import DATA
from raylfl.data.base import DataSource
from raylfl.data.by_index import ClientArrays, MappedArrays, Scale
from raylfl.data.image import ImageTransform
from raylfl.errors import BadValue, DataMissing

Index = dict[str, Any]


@DATA.register("client_files")
class ClientFiles(DataSource):
    """One folder of arrays per client, <path>/<client>/x.npy and y.npy, on the nodes that the index files name.

    A node name is a custom resource of Ray (`ray start --resources='{"hospital_a": 1}'`). A client's samples are read
    only by workers on nodes with the resource that its index file states. Without node names all nodes have all
    folders. Use it with `partition: natural`.
    index: JSON files, one per machine, from `python -m raylfl.data.client_files FOLDER --node NAME`.
    path: the folder of the clients' folders, the same on every node.
    test: a folder with x.npy and y.npy for the test set, that all workers can read; null: no test set.
    """

    def __init__(self, index: list[str], path: str, test: str | None = None, scale: Scale = 1.0):
        if not index:
            raise BadValue("index", got=index, need="one or more index files")
        found = [read_index(Path(name).expanduser()) for name in index]
        first = found[0]
        if any((other["x"], other["y"]) != (first["x"], first["y"]) for other in found):
            raise BadValue("index", got=index, need="files of clients whose arrays have the same shapes and dtypes")
        clients = [(name, facts) for one in found for name, facts in one["clients"].items()]
        names, sizes = [name for name, _ in clients], [int(facts["samples"]) for _, facts in clients]
        if len(set(names)) < len(names):
            raise BadValue("index", got=index, need="files in which every client is named once")
        like = tuple(np.zeros((0, *first[key]["shape"]), first[key]["dtype"]) for key in ("x", "y"))
        self.train_dataset = data = ClientArrays(Path(path).expanduser(), names, sizes, like)
        if test is not None:
            folder = Path(test).expanduser()
            self.test_dataset = MappedArrays([folder / "x.npy", folder / "y.npy"])
        self.client_indices = np.split(np.arange(len(data)), data.offsets[1:-1])
        nodes = [facts.get("node") for _, facts in clients]
        if len({node is None for node in nodes}) > 1:
            raise BadValue("index", got=index, need="files that all name their node, or none of them")
        self.client_nodes = None if None in nodes else [str(node) for node in nodes]
        self.in_shape, self.num_classes = tuple(first["x"]["shape"]), max(one["num_classes"] for one in found)
        if scale != 1.0:
            self.train_transform = self.test_transform = ImageTransform(scale=scale)


def read_index(path: Path) -> Index:
    """The content of an index file. Raises DataMissing if the file is missing or not an index."""
    try:
        found: Index = json.loads(path.read_text())
        if not {"clients", "x", "y", "num_classes"} <= found.keys() or not found["clients"]:
            raise ValueError("clients, x, y or num_classes is missing")
    except (OSError, ValueError, AttributeError) as error:
        raise DataMissing(
            f"data.init_args.index: {path} is no index file ({error}); python -m raylfl.data.client_files writes one"
        ) from error
    return found


def index_of(folder: Path, node: str | None = None) -> Index:
    """The index of the clients' folders in `folder`: names, numbers of samples, shapes, dtypes, number of classes.

    node: the custom resource of Ray that marks the nodes with these folders, if any. Raises DataMissing if `folder`
    contains no client's folder, or if the clients' arrays differ in shape or dtype.
    """
    clients: dict[str, Any] = {}
    facts: set[str] = set()
    classes = 0
    for own in sorted(path.parent for path in folder.glob("*/x.npy")):
        x, y = MappedArrays([own / "x.npy", own / "y.npy"]).columns
        clients[own.name] = {"samples": len(x), **({} if node is None else {"node": node})}
        facts.add(json.dumps({k: {"shape": a.shape[1:], "dtype": str(a.dtype)} for k, a in (("x", x), ("y", y))}))
        if np.issubdtype(y.dtype, np.integer) and len(y):
            classes = max(classes, int(y.max()) + 1)
    if len(facts) != 1:
        need = "no <client>/x.npy and y.npy" if not facts else "clients whose arrays differ in shape or dtype"
        raise DataMissing(f"{folder} holds {need}")
    return {"clients": clients, **json.loads(facts.pop()), "num_classes": classes}


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the index of the clients' folders on this machine.")
    parser.add_argument("folder", type=Path, help="the folder of the clients' folders <client>/x.npy, y.npy")
    parser.add_argument("--node", help="the custom resource of Ray that this machine has")
    given = parser.parse_args()
    print(json.dumps(index_of(given.folder, given.node), indent=1))


if __name__ == "__main__":
    main()
