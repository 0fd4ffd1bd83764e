"""Images as this package holds them: pixels [n, C, H, W], made into what a model sees batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from raylfl.data.base import DataSource, tensors
from raylfl.errors import BadValue


@dataclass(frozen=True)
class ImageTransform:
    """Pixels 0..scale of a batch [B, C, H, W] to what a model sees: (crop(x / scale) - mean) / std.

    mean, std: one number a channel, or one for all.
    size: images enlarged to size x size, bilinear.
    augment: every image on its own shifted by -4..4 pixels each way (zeros move in) and mirrored with
    probability 1/2, drawn from torch's global generator. torchvision.transforms.v2 draws once for a whole
    batch, so it is not used here.

    Inputs that are floating already keep their dtype; integers become torch's default.
    """

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 255.0
    size: int | None = None
    augment: bool = False

    @property
    def fixed(self) -> bool:
        """Whether an image always becomes the same, whatever else is in its batch."""
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
    """A number a channel as [c, 1, 1]; made once, as a GPU makes the host wait for it."""
    return torch.tensor(values, dtype=dtype).view(-1, 1, 1).to(device)


def shift_and_mirror(x: Tensor, margin: int) -> Tensor:
    """Images x [B, C, H, W] padded by `margin` zeros and cropped back, each at its own place and direction.

    The usual random crop and horizontal flip: offsets uniform on 0..2 margin, mirrored with probability 1/2.
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
    """Images and labels, with one transform for training and one (never augmented) for testing."""

    in_shape: tuple[int, ...]
    num_classes: int

    def hold(
        self,
        train: tuple[Tensor, Tensor],
        test: tuple[Tensor, Tensor],
        num_classes: int,
        transform: ImageTransform,
    ) -> None:
        """Take over (images [n, C, H, W], labels int64 [n]) of both halves."""
        self.train_dataset, self.test_dataset = tensors(*train), tensors(*test)
        self.targets, self.num_classes = train[1], num_classes
        channels, height, width = train[0].shape[1:]
        size = transform.size
        self.in_shape = (channels, height, width) if size is None else (channels, size, size)
        self.train_transform = transform
        self.test_transform = replace(transform, augment=False)


def normalised(mean: Sequence[float], std: Sequence[float], channels: int, augment: bool = False) -> ImageTransform:
    """The transform of options `mean` and `std`; raises BadValue where they do not fit so many channels."""
    for key, values in (("mean", mean), ("std", std)):
        if len(values) not in (1, channels):
            raise BadValue(key, got=list(values), need=f"1 or {channels} numbers, one a channel")
    if min(std) <= 0:
        raise BadValue("std", got=list(std), need="> 0", hint="mean [0], std [1] leave pixels in 0..1")
    return ImageTransform(tuple(mean), tuple(std), augment=augment)
