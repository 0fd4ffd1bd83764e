"""Image sets that need no files: scikit-learn's digits, and Gaussian noise around class means in image shape."""

import math
from typing import Annotated

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from raylfl.components.extras import require
from raylfl.components.options import Doc, Ge
from raylfl.core.keyed import keyed
from raylfl.data import DATA
from raylfl.data.base import Count
from raylfl.data.image import ImageData, ImageTransform
from raylfl.errors import BadValue


@DATA.register("digits", paper="Alpaydin & Kaynak 1998 (scikit-learn)")
class Digits(ImageData):
    """Handwritten digits bundled with scikit-learn: 1,797 images of 8x8 pixels, 10 classes.

    Pixels 0..16 are divided by 16. A fifth of each class is the test set, the same in every run.
    upscale: 28 or 32 fits networks for MNIST or CIFAR-10; null: 8x8 pixels.
    """

    def __init__(self, upscale: Annotated[int, Ge(8), Doc("the side of enlarged images in pixels")] | None = None):
        require("sklearn", what="data.name=digits")
        from sklearn.datasets import load_digits  # imported late: listing the data sets does not need it

        source = load_digits()
        images = torch.from_numpy(source.images.astype(np.uint8))[:, None]
        labels = torch.from_numpy(source.target.astype(np.int64))
        train, test = stratified_split(labels)
        transform = ImageTransform(scale=16.0, size=upscale)
        self.hold((images[train], labels[train]), (images[test], labels[test]), 10, transform)


def stratified_split(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Splits n samples class by class; returns the sorted indices for training, then those for testing.

    labels: the class of each sample, int64 [n]. Of the n_c samples of class c, round(n_c / 5) are for testing, the
    same samples in every call.
    """
    held_out = torch.zeros(len(labels), dtype=torch.bool)
    for c in labels.unique().tolist():
        members = keyed(0, "data/split", int(c)).permutation(np.flatnonzero(labels.numpy() == c))
        held_out[members[: round(0.2 * len(members))]] = True
    return torch.nonzero(~held_out).flatten(), torch.nonzero(held_out).flatten()


@DATA.register("synthetic_images")
class SyntheticImages(ImageData):
    """Gaussian data in image shape: an image of class y is mu_y + noise e, with e ~ N(0, I).

    For experiments without a download, with any shape and any number of balanced classes. The class means mu_y are
    drawn once, from N(0, I): for p pixels (values of an image) two of them are about sqrt(2 p) apart, and with noise 1
    the classes are separable. Pixels are float32.
    shape: the shape [channels, height, width] of an image.
    num_train: the number of training images.
    num_test: the number of test images.
    seed: seed of the data, independent of the run's seed.
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (1, 8, 8),
        num_classes: Count = 10,
        num_train: Count = 1000,
        num_test: Count = 200,
        noise: Annotated[float, Ge(0), Doc("the standard deviation around a class's mean")] = 1.0,
        seed: int = 0,
    ):
        if len(shape) != 3 or min(shape) < 1:
            raise BadValue("shape", got=list(shape), need="[channels, height, width], such as [1, 8, 8]")
        pixels = math.prod(shape)

        def normal(part: str, count: int) -> npt.NDArray[np.float32]:
            draw = keyed(seed, f"data/synthetic_images/{part}")
            return draw.standard_normal((count, pixels), dtype=np.float32)

        means = normal("means", num_classes)

        def sample(part: str, count: int) -> tuple[Tensor, Tensor]:
            labels = np.arange(count, dtype=np.int64) % num_classes
            images = means[labels] + np.float32(noise) * normal(part, count)
            return torch.from_numpy(images).view(count, *shape), torch.from_numpy(labels)

        train, test = sample("train", num_train), sample("test", num_test)
        self.hold(train, test, num_classes, ImageTransform(scale=1.0))
