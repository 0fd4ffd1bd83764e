"""MNIST and FashionMNIST from their idx files, and CIFAR-10 and CIFAR-100 from the pickled batches of their archives.

The MD5 of a CIFAR file is checked before it is read.
"""

import gzip
import hashlib
import io
import math
import pickle
import struct
import tarfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.data import DATA
from raylfl.data.base import data_missing, data_root, fetch
from raylfl.data.image import Channels, ImageData, ImageTransform, normalised
from raylfl.errors import DataMissing, headline

IDX = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
ARCHIVES = "https://www.cs.toronto.edu/~kriz"
Half = tuple[Tensor, Tensor]  # images [n, C, H, W], labels int64 [n]


class PublicImages(ImageData, ABC):
    """The images of a public data set, from files in `<root>/<folder>`.

    Options of several data sets:
    root: the folder that contains MNIST/raw, FashionMNIST/raw, cifar-10-batches-py or cifar-100-python; null:
    RAYLFL_DATA or ~/.cache/raylfl.
    download: fetch missing files.
    augment: random crops (padding 4) and mirroring of training batches.
    mean, std: pixels 0..1 become (x - mean)/std.
    """

    name: ClassVar[str]
    folder: ClassVar[str]
    files: ClassVar[Iterable[str]]
    forms: ClassVar[str] = ""  # of the files, for messages

    def load(self, root: str | None, download: bool, classes: int, transform: ImageTransform) -> None:
        """Reads training and test images. Raises DataMissing if files are missing or damaged."""
        self.path = data_root(root) / self.folder
        try:
            train, test = self._read()
        except DataMissing:
            if not download:
                raise
            try:
                self._download()
            except (OSError, tarfile.TarError) as error:
                raise self._missing(f"the download into {self.path} failed ({headline(error)})") from error
            train, test = self._read()
        self.hold(train, test, classes, transform)

    @abstractmethod
    def _read(self) -> tuple[Half, Half]:
        """Training and test images and labels, from the files in `path`."""

    @abstractmethod
    def _download(self) -> None:
        """Fetches the files that are missing or damaged into `path`."""

    def _missing(self, problem: str) -> DataMissing:
        expected = f"{', '.join(self.files)}{self.forms} in {self.path}"
        return data_missing(self.name, problem, expected, above=self.folder, download=True)


class IdxImages(PublicImages):
    """Grey images of ten classes from four idx files, plain or gzipped, as torchvision stores them.

    url: the folder with the files, gzipped. md5: of the four gzipped files, in the order of `IDX`.
    """

    files, forms = IDX, ", plain or .gz,"
    url: ClassVar[str]
    md5: ClassVar[tuple[str, str, str, str]]

    def _download(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        for file, md5 in zip(IDX, self.md5, strict=True):
            (self.path / f"{file}.gz").write_bytes(fetch(f"{self.url}/{file}.gz", md5))

    def _read(self) -> tuple[Half, Half]:
        return self._half(*IDX[:2]), self._half(*IDX[2:])

    def _half(self, images_file: str, labels_file: str) -> Half:
        images, labels = self._array(images_file, 3), self._array(labels_file, 1)
        if len(images) != len(labels) or not len(labels) or labels.max() > 9:
            raise self._missing(f"{self.path / labels_file} does not have a label 0..9 for every image")
        return torch.from_numpy(images)[:, None], torch.from_numpy(labels.astype(np.int64))

    def _array(self, file: str, dims: int) -> npt.NDArray[np.uint8]:
        path = next((path for path in (self.path / file, self.path / f"{file}.gz") if path.is_file()), None)
        if path is None:
            raise self._missing(f"{self.path / file} is missing")
        try:
            values = read_idx(path)
            if values.ndim != dims:
                raise ValueError(f"{values.ndim} dimensions instead of {dims}")
        except (ValueError, struct.error, EOFError, OSError, zlib.error) as error:
            raise self._missing(f"{path} is damaged ({error}); remove it") from error
        return values


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """The array in an idx file of unsigned bytes, plain or .gz (format: LeCun, Cortes & Burges 1998).

    The header is big-endian: two zero bytes, the type (8: unsigned byte), the number of dimensions, the size of each
    dimension (uint32); the values follow.
    Raises ValueError, struct.error, EOFError, OSError or zlib.error if the file is truncated or in another format.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        content = bytearray(file.read())  # torch requires a writable array
    zero, kind, dims = struct.unpack_from(">HBB", content)
    if zero != 0 or kind != 8:
        raise ValueError("not an idx file of unsigned bytes")
    shape = struct.unpack_from(f">{dims}I", content, 4)
    values = np.frombuffer(content, np.uint8, offset=4 + 4 * dims)
    if values.size != math.prod(shape):
        raise ValueError(f"{values.size} values instead of {math.prod(shape)} as its header says")
    return values.reshape(shape)


@DATA.register("mnist", paper="LeCun 1998")
class Mnist(IdxImages):
    """Handwritten digits: 60,000 + 10,000 images of 28x28 grey pixels, 10 classes."""

    name, folder, url = "mnist", "MNIST/raw", "https://ossci-datasets.s3.amazonaws.com/mnist"
    md5 = (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    )

    def __init__(
        self, root: str | None = None, download: bool = False, mean: Channels = (0.1307,), std: Channels = (0.3081,)
    ):
        self.load(root, download, 10, normalised(mean, std, channels=1))


@DATA.register("fashion_mnist", paper="Xiao 2017")
class FashionMnist(IdxImages):
    """Images of clothes: 60,000 + 10,000 images of 28x28 grey pixels, 10 classes."""

    name, folder = "fashion_mnist", "FashionMNIST/raw"
    url = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    md5 = (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    )

    def __init__(
        self, root: str | None = None, download: bool = False, mean: Channels = (0.2860,), std: Channels = (0.3530,)
    ):
        self.load(root, download, 10, normalised(mean, std, channels=1))


class CifarImages(PublicImages):
    """32x32 colour images, read from the pickled batches of the unpacked archive.

    archive: the archive's name and MD5. files: name -> MD5, the test set last. labels: the key of the labels in a file.
    """

    archive: ClassVar[tuple[str, str]]
    files: ClassVar[dict[str, str]]
    labels: ClassVar[str]

    def _download(self) -> None:
        file, md5 = self.archive
        with tarfile.open(fileobj=io.BytesIO(fetch(f"{ARCHIVES}/{file}", md5))) as archive:
            archive.extractall(self.path.parent, filter="data")

    def _read(self) -> tuple[Half, Half]:
        *train, test = map(self._batch, self.files)
        images, labels = zip(*train, strict=True)
        return (torch.cat(images), torch.cat(labels)), test

    def _batch(self, file: str) -> Half:
        path, md5 = self.path / file, self.files[file]
        if not path.is_file():
            raise self._missing(f"{path} is missing")
        if hashlib.md5(packed := path.read_bytes()).hexdigest() != md5:
            raise self._missing(f"{path} is damaged (its MD5 is not {md5})")
        content = pickle.loads(packed, encoding="latin1")
        images = torch.from_numpy(content["data"]).reshape(-1, 3, 32, 32)
        return images, torch.tensor(content[self.labels], dtype=torch.int64)


@DATA.register("cifar10", paper="Krizhevsky 2009")
class Cifar10(CifarImages):
    """Photographs of objects: 50,000 + 10,000 colour images of 32x32 pixels, 10 classes.

    augment: random crops (padding 4) and mirroring of training batches, as in FOCUS, SFL and FedAWARE.
    mean, std: pixels 0..1 become (x - mean)/std. The defaults are the statistics of the data, as in SFL; FOCUS and
    FedAWARE use std 0.2023, 0.1994, 0.2010.
    """

    name, folder, labels = "cifar10", "cifar-10-batches-py", "labels"
    archive = "cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"
    files = {  # noqa: RUF012 - read only
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    }

    def __init__(
        self,
        root: str | None = None,
        download: bool = False,
        augment: bool = False,
        mean: Channels = (0.4914, 0.4822, 0.4465),
        std: Channels = (0.2470, 0.2435, 0.2616),
    ):
        self.load(root, download, 10, normalised(mean, std, 3, augment))


@DATA.register("cifar100", paper="Krizhevsky 2009")
class Cifar100(CifarImages):
    """Photographs of objects: 50,000 + 10,000 colour images of 32x32 pixels, 100 classes."""

    name, folder, labels = "cifar100", "cifar-100-python", "fine_labels"
    archive = "cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"
    files = {  # noqa: RUF012 - read only
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    }

    def __init__(
        self,
        root: str | None = None,
        download: bool = False,
        augment: bool = False,
        mean: Channels = (0.5071, 0.4865, 0.4409),
        std: Channels = (0.2673, 0.2564, 0.2762),
    ):
        self.load(root, download, 100, normalised(mean, std, 3, augment))
