"""Loaders on tiny files in the formats in which the data sets are distributed."""

import gzip
import hashlib
import pickle
import shutil
import struct
import tarfile
from urllib.error import URLError

import numpy as np
import pytest
import torch
from PIL import Image

from raylfl.data import archives as cifar
from raylfl.data.archives import Cifar10, Cifar100, FashionMnist, Mnist
from raylfl.data.base import data_root
from raylfl.data.by_index import Npy
from raylfl.data.image_folder import Cinic10
from raylfl.errors import DataMissing

RNG = np.random.default_rng(0)
IDX = {
    "train-images-idx3-ubyte": RNG.integers(0, 256, (6, 28, 28), dtype=np.uint8),
    "train-labels-idx1-ubyte": np.array([3, 1, 4, 1, 5, 9], dtype=np.uint8),
    "t10k-images-idx3-ubyte": RNG.integers(0, 256, (2, 28, 28), dtype=np.uint8),
    "t10k-labels-idx1-ubyte": np.array([2, 6], dtype=np.uint8),
}


def idx_bytes(array):
    """The file format of MNIST's page: 0, 0, type 8, dimensions; big-endian sizes; the bytes."""
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def write_idx(root, folder="MNIST", zipped=True, leave_out=(), **replace):
    raw = root / folder / "raw"
    raw.mkdir(parents=True)
    for file, array in IDX.items():
        content = replace.get(file.replace("-", "_"), idx_bytes(array))
        if file not in leave_out:
            path = raw / (f"{file}.gz" if zipped else file)
            path.write_bytes(gzip.compress(content) if zipped else content)
    return raw


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(("cls", "folder"), [(Mnist, "MNIST"), (FashionMnist, "FashionMNIST")])
def test_idx_files_become_images_and_labels(tmp_path, cls, folder, zipped):
    write_idx(tmp_path, folder, zipped)
    data = cls(root=str(tmp_path), mean=[0.5], std=[0.25])
    x, y = data.train_dataset.tensors
    np.testing.assert_array_equal(x[:, 0], IDX["train-images-idx3-ubyte"])
    assert y.tolist() == data.targets.tolist() == [3, 1, 4, 1, 5, 9]
    np.testing.assert_array_equal(data.test_dataset.tensors[0][:, 0], IDX["t10k-images-idx3-ubyte"])
    assert data.test_dataset.tensors[1].tolist() == [2, 6]
    assert (data.in_shape, data.num_classes, x.dtype, y.dtype) == ((1, 28, 28), 10, torch.uint8, torch.int64)
    expected = (IDX["train-images-idx3-ubyte"] / 255 - 0.5) / 0.25
    np.testing.assert_allclose(data.train_transform(x)[:, 0], expected, atol=1e-6)


def test_missing_mnist_names_the_file_the_folder_and_two_ways_out(tmp_path):
    raw = write_idx(tmp_path, leave_out=["t10k-labels-idx1-ubyte"])
    with pytest.raises(DataMissing) as caught:
        Mnist(root=str(tmp_path))
    message = str(caught.value)
    assert f"data.name=mnist: {raw / 't10k-labels-idx1-ubyte'} is missing" in message
    assert all(file in message for file in IDX)
    assert "data.init_args.download=true" in message
    assert "data.init_args.root" in message
    assert "RAYLFL_DATA" in message
    assert len(message.splitlines()) == 2


WHOLE = idx_bytes(IDX["train-images-idx3-ubyte"])


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (WHOLE[:-1], "4703 values instead of 4704"),
        (WHOLE + b"x", "4705 values instead of 4704"),
        (b"<html>not found</html>", "not an idx file"),
        (WHOLE[:3], "buffer of at least 4 bytes"),
        (WHOLE[:6], "buffer of at least"),
        (idx_bytes(IDX["train-labels-idx1-ubyte"]), "1 dimensions instead of 3"),
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_damaged_idx_files_are_named_with_the_reason(tmp_path, content, reason, zipped):
    raw = write_idx(tmp_path, zipped=zipped, train_images_idx3_ubyte=content)
    with pytest.raises(DataMissing) as caught:
        Mnist(root=str(tmp_path))
    assert str(raw / "train-images-idx3-ubyte") in str(caught.value)
    assert "is damaged" in str(caught.value)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    "damage", [lambda b: b[: len(b) // 2], lambda b: b"junk" + b, lambda b: b[:40] + b"\xff" * 30 + b[70:]]
)
def test_damaged_archives_are_named(tmp_path, damage):
    path = write_idx(tmp_path) / "train-images-idx3-ubyte.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataMissing, match=r"train-images-idx3-ubyte\.gz is damaged"):
        Mnist(root=str(tmp_path))


@pytest.mark.parametrize("labels", [[1, 2, 3], [0, 1, 2, 3, 4, 10]])
def test_labels_that_do_not_fit_the_images_are_refused(tmp_path, labels):
    write_idx(tmp_path, train_labels_idx1_ubyte=idx_bytes(np.array(labels, dtype=np.uint8)))
    with pytest.raises(DataMissing, match="train-labels-idx1-ubyte does not have a label"):
        Mnist(root=str(tmp_path))


def test_mnist_is_downloaded_if_files_are_missing(tmp_path, monkeypatch):
    source = write_idx(tmp_path / "source")
    monkeypatch.setattr(Mnist, "url", source.as_uri())
    md5 = tuple(hashlib.md5((source / f"{file}.gz").read_bytes()).hexdigest() for file in IDX)
    monkeypatch.setattr(Mnist, "md5", md5)
    assert Mnist(root=str(tmp_path / "new"), download=True).targets.tolist() == [3, 1, 4, 1, 5, 9]
    monkeypatch.setattr(Mnist, "md5", ("0" * 32, *md5[1:]))
    Mnist(root=str(tmp_path / "new"), download=True)  # nothing is missing
    with pytest.raises(DataMissing, match=r"train-images-idx3-ubyte\.gz has another MD5 than 0000"):
        Mnist(root=str(tmp_path / "other"), download=True)
    assert list((tmp_path / "other/MNIST/raw").iterdir()) == []


def test_cifar_is_downloaded_if_files_are_missing(tmp_path, monkeypatch):
    rows = write_cifar(tmp_path / "source", monkeypatch)
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "source" / Cifar10.folder, Cifar10.folder)
    monkeypatch.setattr(cifar, "ARCHIVES", tmp_path.as_uri())
    md5 = hashlib.md5((tmp_path / "cifar.tar.gz").read_bytes()).hexdigest()
    monkeypatch.setattr(Cifar10, "archive", ("cifar.tar.gz", md5))
    data = Cifar10(root=str(tmp_path / "new"), download=True)
    np.testing.assert_array_equal(data.test_dataset.tensors[1], rows["test_batch"][1])
    monkeypatch.setattr(Cifar10, "archive", ("cifar.tar.gz", "0" * 32))
    Cifar10(root=str(tmp_path / "new"), download=True)  # nothing is missing
    with pytest.raises(DataMissing, match=r"the download into .* failed .*has another MD5 than 0000"):
        Cifar10(root=str(tmp_path / "other"), download=True)


def test_a_failed_download_is_reported(tmp_path, monkeypatch):
    def fail(url, timeout):
        raise URLError("no route to host")

    monkeypatch.setattr("urllib.request.urlopen", fail)
    for cls in (Mnist, Cifar10):
        with pytest.raises(DataMissing, match=r"the download into .* failed .*no route to host"):
            cls(root=str(tmp_path), download=True)


def write_cifar(root, monkeypatch, source=Cifar10):
    """Batches as `pickle` with rows of 3072 bytes, red first; the MD5 list of the data set becomes theirs."""
    base = root / source.folder
    base.mkdir(parents=True)
    rows, files = {}, {}
    for file in source.files:
        x = RNG.integers(0, 256, (2, 3072), dtype=np.uint8)
        y = RNG.integers(0, 10, 2).tolist()
        content = pickle.dumps({"data": x, source.labels: y, "filenames": ["a.png", "b.png"]}, protocol=2)
        (base / file).write_bytes(content)
        files[file] = hashlib.md5(content).hexdigest()
        rows[file] = (x, y)
    monkeypatch.setattr(source, "files", files)
    return rows


def test_cifar10_batches_become_images_in_file_order(tmp_path, monkeypatch):
    rows = write_cifar(tmp_path, monkeypatch)
    data = Cifar10(root=str(tmp_path), augment=True)
    files = [f"data_batch_{k}" for k in range(1, 6)]
    x, y = data.train_dataset.tensors
    expected = np.concatenate([rows[file][0] for file in files]).reshape(-1, 3, 32, 32)  # red, green, blue planes
    np.testing.assert_array_equal(x, expected)
    assert y.tolist() == data.targets.tolist() == [label for file in files for label in rows[file][1]]
    np.testing.assert_array_equal(data.test_dataset.tensors[0], rows["test_batch"][0].reshape(-1, 3, 32, 32))
    assert (data.in_shape, data.num_classes, x.dtype, y.dtype) == ((3, 32, 32), 10, torch.uint8, torch.int64)
    assert (data.train_transform.augment, data.test_transform.augment) == (True, False)


def test_cifar100_uses_the_fine_labels(tmp_path, monkeypatch):
    rows = write_cifar(tmp_path, monkeypatch, Cifar100)
    data = Cifar100(root=str(tmp_path))
    assert data.targets.tolist() == rows["train"][1]
    assert data.num_classes == 100


@pytest.mark.parametrize("file", ["data_batch_3", "test_batch"])
def test_missing_and_damaged_batches_have_different_messages(tmp_path, monkeypatch, file):
    write_cifar(tmp_path, monkeypatch)
    path = tmp_path / "cifar-10-batches-py" / file
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(DataMissing, match=rf"data\.name=cifar10: {path} is damaged"):
        Cifar10(root=str(tmp_path))
    path.unlink()
    with pytest.raises(DataMissing) as caught:
        Cifar10(root=str(tmp_path))
    message = str(caught.value)
    assert f"data.name=cifar10: {path} is missing; expected data_batch_1, " in message
    assert "download=true" in message
    assert len(message.splitlines()) == 2


def test_a_damaged_batch_is_never_unpickled(tmp_path, monkeypatch):
    write_cifar(tmp_path, monkeypatch)

    class Trap:
        def __reduce__(self):
            return (tmp_path / "sprung").touch, ()

    (tmp_path / "cifar-10-batches-py" / "data_batch_1").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataMissing, match="is damaged"):
        Cifar10(root=str(tmp_path))
    assert not (tmp_path / "sprung").exists()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def write_cinic(root, classes=("airplane", "cat"), per_class=3, size=(32, 32)):
    pixels = {}
    for half in ("train", "test", "valid"):
        for label, name in enumerate(classes):
            folder = root / "CINIC-10" / half / name
            folder.mkdir(parents=True)
            for k in range(per_class):
                image = RNG.integers(0, 256, (*size, 3), dtype=np.uint8)
                Image.fromarray(image).save(folder / f"{k}.png")
                pixels[half, label, k] = image
    return pixels


def stack(pixels, half):
    return np.stack([image for (h, _, _), image in pixels.items() if h == half]).transpose(0, 3, 1, 2)


def test_cinic_folders_become_images_and_labels(tmp_path):
    pixels = write_cinic(tmp_path)
    data = Cinic10(root=str(tmp_path), augment=True)
    for dataset, half in ((data.train_dataset, "train"), (data.test_dataset, "test")):
        x, y = dataset.tensors
        np.testing.assert_array_equal(x, stack(pixels, half))
        assert y.tolist() == [0, 0, 0, 1, 1, 1]
    assert (data.in_shape, data.num_classes, data.targets.dtype) == ((3, 32, 32), 2, torch.int64)
    assert (data.train_transform.augment, data.test_transform.augment) == (True, False)


def test_missing_cinic_folders_and_images_of_another_size_are_named(tmp_path):
    with pytest.raises(DataMissing, match=rf"data\.name=cinic10: {tmp_path}/CINIC-10 is missing"):
        Cinic10(root=str(tmp_path))
    write_cinic(tmp_path)
    shutil.rmtree(tmp_path / "CINIC-10" / "train")
    with pytest.raises(DataMissing, match=r"data\.name=cinic10: .*/CINIC-10 holds no train/<class>/"):
        Cinic10(root=str(tmp_path))
    write_cinic(tmp_path / "narrow", size=(32, 31))
    with pytest.raises(DataMissing, match=r"have \(32, 31\) pixels instead of \(32, 32\)"):
        Cinic10(root=str(tmp_path / "narrow"))


def test_the_root_is_the_option_else_the_environment_else_the_users_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAYLFL_DATA", raising=False)
    assert data_root(None) == tmp_path / ".cache" / "raylfl"
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path / "env"))
    assert data_root(None) == tmp_path / "env"
    assert data_root("~/mine") == tmp_path / "mine"
    write_idx(tmp_path / "env")
    assert len(Mnist().train_dataset) == 6


def test_a_relative_path_is_below_the_working_directory_or_else_below_the_root(tmp_path, monkeypatch):
    root, here = tmp_path / "root", tmp_path / "here"
    for folder, value in ((root / "a", 1.0), (root / "b", 2.0), (here / "b", 3.0)):
        folder.mkdir(parents=True)
        np.save(folder / "train_x.npy", np.full((4, 2), value, np.float32))
        np.save(folder / "train_y.npy", np.arange(4) % 2)
    monkeypatch.setenv("RAYLFL_DATA", str(root))
    monkeypatch.chdir(here)

    def first(path, **options):
        return float(Npy(path, **options).train_dataset.columns[0][0, 0])

    assert [first("a"), first("b"), first(str(root / "b"))] == [1.0, 3.0, 2.0]
    assert first("b", root=str(root)) == 2.0  # a root that is given holds every relative path
    made = Npy("b")
    monkeypatch.chdir(tmp_path)
    assert float(made.train_dataset.columns[0][0, 0]) == 3.0
    with pytest.raises(DataMissing, match=r"relative to the working directory or to RAYLFL_DATA"):
        Npy("c")
