"""Image data sets: pixels [n, C, H, W], transformed to the inputs of a model batch by batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from raylfl.data.base import DataSource, tensors
from raylfl.errors import BadValue

Channels = tuple[float, ...]  # one number per channel, or one for all channels


@dataclass(frozen=True)
class ImageTransform:
    """The transform of a batch of pixels 0..scale [B, C, H, W] to model inputs: (x / scale - mean) / std.

    size: images are resized to size x size (bilinear) before mean is subtracted; None: unchanged.
    augment: before mean is subtracted, each image is shifted by -4..4 pixels in both directions (filled with zeros) and
    mirrored with probability 1/2, drawn from torch's global generator. torchvision.transforms.v2 is not used, because
    it draws once for a whole batch.

    Floating-point inputs keep their dtype; integers become torch's default dtype.
    """

    mean: Channels = (0.0,)
    std: Channels = (1.0,)
    scale: float = 255.0
    size: int | None = None
    augment: bool = False

    @property
    def fixed(self) -> bool:
        """Whether the transform is deterministic and transforms each image independently of the rest of its batch."""
        return not self.augment

    def __call__(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else x.to(torch.get_default_dtype())
        if self.scale != 1.0:
            x = x / self.scale
        if self.size is not None:
            x = F.interpolate(x, size=(self.size, self.size), mode="bilinear", align_corners=False)
        if self.augment:
            x = shift_and_mirror(x, 4)
        if not any(self.mean) and set(self.std) == {1.0}:
            return x
        return (x - _channels(self.mean, x.dtype, x.device)) / _channels(self.std, x.dtype, x.device)


@cache
def _channels(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """One number per channel as a tensor [c, 1, 1], cached because a copy to a GPU makes the host wait."""
    return torch.tensor(values, dtype=dtype).view(-1, 1, 1).to(device)


def shift_and_mirror(x: Tensor, margin: int) -> Tensor:
    """Random crop and horizontal flip of images x [B, C, H, W], drawn for each image.

    Each image is padded by `margin` zeros on every side and cropped to its size at offsets uniform on 0..2 margin, then
    mirrored with probability 1/2. All draws are from torch's global generator.
    """
    count, _, height, width = x.shape
    dy, dx = torch.randint(0, 2 * margin + 1, (2, count, 1), device=x.device)
    mirrored = torch.rand(count, 1, device=x.device) < 0.5
    rows = dy + torch.arange(height, device=x.device)  # [B, H]
    columns = dx + torch.arange(width, device=x.device)
    columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(x, (margin, margin, margin, margin)).permute(0, 2, 3, 1)
    image = torch.arange(count, device=x.device)[:, None, None]
    return padded[image, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2).contiguous()


class ImageData(DataSource):
    """Images and labels, with a transform for training; the same transform without augmentation is for testing."""

    in_shape: tuple[int, ...]
    num_classes: int

    def hold(
        self, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], num_classes: int, transform: ImageTransform
    ) -> None:
        """Sets the attributes of the data set from its images, labels and transform.

        train, test: (images [n, C, H, W], labels int64 [n]).
        """
        self.train_dataset, self.test_dataset = tensors(*train), tensors(*test)
        self.targets, self.num_classes = train[1], num_classes
        channels, height, width = train[0].shape[1:]
        size = transform.size
        self.in_shape = (channels, height, width) if size is None else (channels, size, size)
        self.train_transform = transform
        self.test_transform = replace(transform, augment=False)


def normalised(mean: Sequence[float], std: Sequence[float], channels: int, augment: bool = False) -> ImageTransform:
    """The transform of pixels 0..255 with this mean and std. Raises BadValue if they do not fit the channels."""
    for key, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise BadValue(key, got=list(values), need=f"1 or {channels} numbers, one per channel")
    if min(std) <= 0:
        raise BadValue("std", got=list(std), need="> 0", hint="mean [0], std [1] leave pixels in 0..1")
    return ImageTransform(tuple(mean), tuple(std), augment=augment)
