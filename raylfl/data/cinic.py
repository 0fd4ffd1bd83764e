"""CINIC-10 from its png files."""

from __future__ import annotations

from typing import ClassVar

from raylfl.data import DATA
from raylfl.data.base import data_missing, data_root
from raylfl.data.image_folder import ImageFolder


@DATA.register("cinic10", paper="Darlow 2018")
class Cinic10(ImageFolder):
    """The classes of CIFAR-10 with images of ImageNet added: 90,000 + 90,000 colour images of 32x32 pixels.

    The images are CINIC-10/train/<class>/*.png and CINIC-10/test/<class>/*.png below the root, as unpacked from
    CINIC-10.tar.gz (datashare.ed.ac.uk, 10283/3192); the folder valid is not used. They are read once and cached as
    arrays, like those of `image_folder`.
    root: the folder that contains CINIC-10; null: RAYLFL_DATA or ~/.cache/raylfl.
    augment: random crops (padding 4) and mirroring of training batches.
    mean, std: pixels 0..1 become (x - mean)/std.
    """

    name: ClassVar[str] = "cinic10"

    def __init__(
        self,
        root: str | None = None,
        augment: bool = False,
        mean: tuple[float, ...] = (0.4789, 0.4723, 0.4305),
        std: tuple[float, ...] = (0.2421, 0.2383, 0.2587),
    ):
        top = str(data_root(root))
        super().__init__("CINIC-10", augment=augment, mean=mean, std=std, root=top)
        if self.in_shape != (3, 32, 32):
            problem = f"the images have {self.in_shape[1:]} pixels instead of (32, 32)"
            raise data_missing(self.name, problem, f"CINIC-10 in {top}", above="CINIC-10", download=False)
