"""CIFAR-10 and CIFAR-100 through torchvision, which checks the MD5 of every file before it reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from raylfl.components.extras import require
from raylfl.data import DATA
from raylfl.data.base import data_missing, data_root
from raylfl.data.image import ImageData, normalised
from raylfl.errors import DataMissing


class CifarImages(ImageData):
    """32x32 colour images, read from the pickled batches of the unpacked archive in the data folder."""

    name: ClassVar[str]
    source: ClassVar[str]  # torchvision's class

    def load(
        self,
        root: str | None,
        download: bool,
        augment: bool,
        mean: tuple[float, ...],
        std: tuple[float, ...],
    ) -> None:
        """Reads training and test images. Raises DataMissing if files are missing or their MD5 differs."""
        require("torchvision", what=f"data.name={self.name}")
        from torchvision import datasets  # imported late: listing the data sets does not need it

        transform = normalised(mean, std, channels=3, augment=augment)
        reader, folder = getattr(datasets, self.source), data_root(root)
        try:
            sets = [reader(folder, train=train, download=download and train) for train in (True, False)]
        except (RuntimeError, OSError) as error:  # torchvision does not distinguish missing from damaged files
            raise self._missing(reader, folder, download, error) from error
        train, test = (self._half(part) for part in sets)
        self.hold(train, test, len(sets[0].classes), transform)

    @staticmethod
    def _half(part: Any) -> tuple[Tensor, Tensor]:
        images = torch.from_numpy(part.data).permute(0, 3, 1, 2).contiguous()
        return images, torch.tensor(part.targets, dtype=torch.int64)

    def _missing(self, reader: Any, root: Path, download: bool, error: Exception) -> DataMissing:
        from torchvision.datasets.utils import check_integrity

        files = [*reader.train_list, *reader.test_list, (reader.meta["filename"], reader.meta["md5"])]
        folder = root / reader.base_folder
        problem = f"reading {folder} failed ({' '.join(str(error).split())})"
        for file, md5 in files:
            path = folder / file
            if not path.is_file():
                problem = f"{path} is missing"
                break
            if not check_integrity(path, md5):
                problem = f"{path} is damaged (its MD5 is not {md5})"
                break
        if download:
            problem = f"the download into {root} failed ({' '.join(str(error).split())}), and {problem}"
        expected = f"{', '.join(file for file, _ in files)} in {folder}"
        return data_missing(self.name, problem, expected, above=reader.base_folder, download=True)


@DATA.register("cifar10", paper="Krizhevsky 2009")
class Cifar10(CifarImages):
    """Photographs of objects: 50,000 + 10,000 colour images of 32x32 pixels, 10 classes.

    root: the folder that contains cifar-10-batches-py; null: RAYLFL_DATA or ~/.cache/raylfl.
    download: fetch missing files.
    augment: random crops (padding 4) and mirroring of training batches, as in FOCUS, SFL and FedAWARE.
    mean, std: pixels 0..1 become (x - mean)/std. The defaults are the statistics of the data, as in SFL; FOCUS and
    FedAWARE use std 0.2023, 0.1994, 0.2010.
    """

    name, source = "cifar10", "CIFAR10"

    def __init__(
        self,
        root: str | None = None,
        download: bool = False,
        augment: bool = False,
        mean: tuple[float, ...] = (0.4914, 0.4822, 0.4465),
        std: tuple[float, ...] = (0.2470, 0.2435, 0.2616),
    ):
        self.load(root, download, augment, mean, std)


@DATA.register("cifar100", paper="Krizhevsky 2009")
class Cifar100(CifarImages):
    """Photographs of objects: 50,000 + 10,000 colour images of 32x32 pixels, 100 classes.

    root: the folder that contains cifar-100-python; null: RAYLFL_DATA or ~/.cache/raylfl.
    download: fetch missing files.
    augment: random crops (padding 4) and mirroring of training batches.
    mean, std: pixels 0..1 become (x - mean)/std.
    """

    name, source = "cifar100", "CIFAR100"

    def __init__(
        self,
        root: str | None = None,
        download: bool = False,
        augment: bool = False,
        mean: tuple[float, ...] = (0.5071, 0.4865, 0.4409),
        std: tuple[float, ...] = (0.2673, 0.2564, 0.2762),
    ):
        self.load(root, download, augment, mean, std)
