"""CIFAR-10 and CIFAR-100 from the pickled batches of their archives; the MD5 of a file is checked before it is read."""

from __future__ import annotations

import hashlib
import io
import pickle
import tarfile
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from raylfl.data import DATA
from raylfl.data.base import data_missing, data_root, fetch
from raylfl.data.image import ImageData, normalised
from raylfl.errors import DataMissing, headline

ARCHIVES = "https://www.cs.toronto.edu/~kriz"


class CifarImages(ImageData):
    """32x32 colour images, read from the pickled batches of the unpacked archive in the data folder.

    archive: the archive's name and MD5. folder: in the archive. files: name -> MD5, the test set last. labels: the key
    of the labels in a file.
    """

    name: ClassVar[str]
    archive: ClassVar[tuple[str, str]]
    folder: ClassVar[str]
    files: ClassVar[dict[str, str]]
    labels: ClassVar[str]

    def load(
        self,
        classes: int,
        root: str | None,
        download: bool,
        augment: bool,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        """Reads training and test images. Raises DataMissing if files are missing or their MD5 differs."""
        transform = normalised(mean, std, channels=3, augment=augment)
        top = data_root(root)
        problem = self._problem(top)
        if problem and download:
            file, md5 = self.archive
            try:
                with tarfile.open(fileobj=io.BytesIO(fetch(f"{ARCHIVES}/{file}", md5))) as archive:
                    archive.extractall(top, filter="data")
            except (OSError, tarfile.TarError) as error:
                raise self._missing(
                    top, f"the download into {top} failed ({headline(error)}), and {problem}"
                ) from error
            problem = self._problem(top)
        if problem:
            raise self._missing(top, problem)
        *train, test = (self._batch(top / self.folder / file) for file in self.files)
        images, labels = zip(*train, strict=True)
        self.hold((torch.cat(images), torch.cat(labels)), test, classes, transform)

    def _batch(self, path: Path) -> tuple[Tensor, Tensor]:
        content = pickle.loads(path.read_bytes(), encoding="latin1")
        images = torch.from_numpy(content["data"]).reshape(-1, 3, 32, 32)
        return images, torch.tensor(content[self.labels], dtype=torch.int64)

    def _problem(self, top: Path) -> str:
        """What is wrong with the files; "" if nothing is."""
        for file, md5 in self.files.items():
            path = top / self.folder / file
            if not path.is_file():
                return f"{path} is missing"
            if hashlib.md5(path.read_bytes()).hexdigest() != md5:
                return f"{path} is damaged (its MD5 is not {md5})"
        return ""

    def _missing(self, top: Path, problem: str) -> DataMissing:
        expected = f"{', '.join(self.files)} in {top / self.folder}"
        return data_missing(self.name, problem, expected, above=self.folder, download=True)


@DATA.register("cifar10", paper="Krizhevsky 2009")
class Cifar10(CifarImages):
    """Photographs of objects: 50,000 + 10,000 colour images of 32x32 pixels, 10 classes.

    root: the folder that contains cifar-10-batches-py; null: RAYLFL_DATA or ~/.cache/raylfl.
    download: fetch missing files.
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
        mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465),
        std: tuple[float, ...] = (0.2470, 0.2435, 0.2616),
    ):
        self.load(10, root, download, augment, mean, std)


@DATA.register("cifar100", paper="Krizhevsky 2009")
class Cifar100(CifarImages):
    """Photographs of objects: 50,000 + 10,000 colour images of 32x32 pixels, 100 classes.

    root: the folder that contains cifar-100-python; null: RAYLFL_DATA or ~/.cache/raylfl.
    download: fetch missing files.
    augment: random crops (padding 4) and mirroring of training batches.
    mean, std: pixels 0..1 become (x - mean)/std.
    """

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
        mean: tuple[float, ...] = (0.5071, 0.4865, 0.4409),
        std: tuple[float, ...] = (0.2673, 0.2564, 0.2762),
    ):
        self.load(100, root, download, augment, mean, std)
