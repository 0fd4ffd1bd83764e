"""CINIC-10: 180,000 png files, decoded once into two memory-mapped files, one for training and one for testing."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.components.extras import require
from raylfl.data import DATA
from raylfl.data.base import data_missing, data_root
from raylfl.data.image import ImageData, normalised
from raylfl.errors import DataMissing

SIDE = 32  # pixels
log = logging.getLogger(__name__)


@DATA.register("cinic10", paper="Darlow 2018")
class Cinic10(ImageData):
    """The classes of CIFAR-10 with images of ImageNet added: 90,000 + 90,000 colour images of 32x32 pixels.

    The images are CINIC-10/train/<class>/*.png and CINIC-10/test/<class>/*.png below the root, as unpacked from
    CINIC-10.tar.gz (datashare.ed.ac.uk, 10283/3192); the folder valid is not used. Decoded pixels are stored in
    CINIC-10 as .raylfl-train-<key>.npy and .raylfl-test-<key>.npy, whose keys depend on the names, classes and sizes of
    the png files.
    root: the folder that contains CINIC-10; null: RAYLFL_DATA or ~/.cache/raylfl.
    augment: random crops (padding 4) and mirroring of training batches.
    mean, std: pixels 0..1 become (x - mean)/std.
    """

    def __init__(
        self,
        root: str | None = None,
        augment: bool = False,
        mean: tuple[float, ...] = (0.4789, 0.4723, 0.4305),
        std: tuple[float, ...] = (0.2421, 0.2383, 0.2587),
    ):
        transform = normalised(mean, std, channels=3, augment=augment)
        self.folder = data_root(root) / "CINIC-10"
        classes = self._classes("train")
        if self._classes("test") != classes:
            raise self._missing(f"train and test in {self.folder} have different classes")
        train, test = (self._half(half) for half in ("train", "test"))
        self.hold(train, test, len(classes), transform)

    def _classes(self, half: str) -> list[str]:
        folder = self.folder / half
        if not folder.is_dir():
            raise self._missing(f"{folder} is missing")
        return sorted(entry.name for entry in folder.iterdir() if entry.is_dir())

    def _half(self, half: str) -> tuple[Tensor, Tensor]:
        require("torchvision", what="data.name=cinic10")
        from torchvision.datasets import ImageFolder  # imported late: listing the data sets does not need it

        try:
            samples = ImageFolder(self.folder / half).samples
        except FileNotFoundError as error:
            raise self._missing(f"{self.folder / half} has no images ({error})") from error
        cache = self.folder / f".raylfl-{half}-{_listing_key(samples)}.npy"
        images = _mapped(cache, len(samples))
        if images is None:
            images = self._decode([path for path, _ in samples])
            _keep(cache, images)
        labels = torch.tensor([label for _, label in samples], dtype=torch.int64)
        return torch.from_numpy(images), labels

    def _decode(self, paths: Sequence[str]) -> npt.NDArray[np.uint8]:
        from torchvision.datasets.folder import pil_loader

        images = np.empty((len(paths), 3, SIDE, SIDE), dtype=np.uint8)
        for row, path in zip(images, paths, strict=True):
            try:
                pixels = np.asarray(pil_loader(path))
            except (OSError, SyntaxError) as error:  # a truncated file, or no image
                raise self._missing(f"{path} is damaged ({error}); unpack it again") from error
            if pixels.shape != (SIDE, SIDE, 3):
                raise self._missing(f"{path} has {pixels.shape[:2]} pixels instead of {SIDE, SIDE}")
            row[...] = pixels.transpose(2, 0, 1)
        return images

    def _missing(self, problem: str) -> DataMissing:
        expected = f"train/<class>/*.png and test/<class>/*.png in {self.folder}"
        return data_missing("cinic10", problem, expected, above="CINIC-10", download=False)


def _listing_key(samples: Sequence[tuple[str, int]]) -> str:
    """A key of 16 hex digits that depends on the names, classes and sizes of the files in `samples`.

    samples: pairs (path, number of the class).
    """
    digest = hashlib.blake2b(digest_size=8)
    for path, label in samples:
        digest.update(f"{Path(path).name}/{label}/{os.path.getsize(path)}\n".encode())
    return digest.hexdigest()


def _mapped(cache: Path, count: int) -> npt.NDArray[np.uint8] | None:
    """The decoded pixels [count, 3, 32, 32], mapped copy-on-write; None if the file is missing or incomplete."""
    try:
        images = np.load(cache, mmap_mode="c")
    except (OSError, ValueError, EOFError):
        return None
    return images if images.shape == (count, 3, SIDE, SIDE) and images.dtype == np.uint8 else None


def _keep(cache: Path, images: npt.NDArray[np.uint8]) -> None:
    """Stores the pixels by a temporary file and a rename; a failure is only logged, and the next run decodes again."""
    aside = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
    try:
        with open(aside, "wb") as file:
            np.save(file, images)
            os.fsync(file.fileno())
        os.replace(aside, cache)
    except OSError as error:
        aside.unlink(missing_ok=True)
        log.warning("cinic10: cannot store decoded images (%s); the next run decodes them again", error)
