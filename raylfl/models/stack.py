"""Stack: networks written layer by layer, as papers describe them; the input shape of a layer is inferred."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated

from torch import nn

from raylfl.components.options import Doc, Ge, Lt
from raylfl.errors import BadValue

Dropout = Annotated[float, Ge(0), Lt(1), Doc("the probability of dropout")]


class Stack:
    """A chain of layers for inputs of shape `in_shape`; methods such as `conv` append a layer and return the stack.

    `Stack((1, 28, 28)).conv(6, 5).relu().pool().flatten().linear(10)` has the layers conv1, pool1, relu1, flatten, fc1
    in this order (see `pool`). Raises BadValue(in_shape) if the output of a layer would be empty, or if a layer needs
    an image [channels, height, width] and gets another shape.
    """

    def __init__(self, in_shape: Sequence[int]):
        self.in_shape = tuple(int(size) for size in in_shape)
        if not self.in_shape or min(self.in_shape) < 1:
            raise BadValue("in_shape", got=list(in_shape), need="positive sizes, such as [3, 32, 32]")
        self.shape = self.in_shape  # the output shape of the last layer
        self.layers: OrderedDict[str, nn.Module] = OrderedDict()
        self._count: Counter[str] = Counter()

    def conv(self, channels: int, kernel: int, padding: int = 0) -> Stack:
        """Appends a convolution with bias and stride 1; height and width shrink by kernel - 1 - 2 padding."""
        before, height, width = self.image()
        lost = kernel - 1 - 2 * padding
        layer = nn.Conv2d(before, channels, kernel, padding=padding)
        return self.add("conv", layer, (channels, height - lost, width - lost))

    def relu(self) -> Stack:
        """Appends a ReLU, out of place, because functional transforms forbid in-place operations."""
        return self.add("relu", nn.ReLU(), self.shape)

    def pool(self) -> Stack:
        """Appends a max-pool over 2x2 squares; an odd last row or column is dropped.

        If the last layer is a ReLU, the pool is inserted before it, which saves three quarters of the ReLU's work.
        Outputs and gradients have the same bits, since max(0, .) commutes with the maximum.
        """
        channels, height, width = self.image()
        last = next(reversed(self.layers), "")
        relu = self.layers.pop(last) if last.startswith("relu") else None
        self.add("pool", nn.MaxPool2d(2), (channels, height // 2, width // 2))
        if relu is not None:
            self.layers[last] = relu
        return self

    def dropout(self, p: float) -> Stack:
        """Appends dropout (none for p = 0): in training, each entry x becomes 0 with probability p, else x/(1 - p)."""
        return self.add("dropout", nn.Dropout(p), self.shape) if p > 0 else self

    def mean(self) -> Stack:
        """Appends a global average pool, from [channels, height, width] to [channels, 1, 1]."""
        return self.add("mean", nn.AdaptiveAvgPool2d(1), (self.image()[0], 1, 1), numbered=False)

    def flatten(self) -> Stack:
        """Appends a layer that flattens all dimensions except the batch dimension."""
        return self.add("flatten", nn.Flatten(), (math.prod(self.shape),), numbered=False)

    def linear(self, outputs: int) -> Stack:
        """Appends a fully connected layer with bias."""
        return self.add("fc", nn.Linear(self.shape[-1], outputs), (*self.shape[:-1], outputs))

    def add(self, kind: str, layer: nn.Module, shape: tuple[int, ...], numbered: bool = True) -> Stack:
        """Appends a layer under the name `kind`, followed by a running number if `numbered`.

        shape: the shape of the layer's output without the batch dimension.
        """
        if min(shape) < 1:
            raise BadValue(
                "in_shape",
                got=list(self.in_shape),
                need=f"larger: the output of {kind}{self._count[kind] + 1} would be empty",
                hint="small images can be enlarged: data.init_args.upscale of digits",
            )
        self._count[kind] += 1
        self.layers[f"{kind}{self._count[kind]}" if numbered else kind] = layer
        self.shape = shape
        return self

    def init(self, rule: Callable[[nn.Module], None]) -> Stack:
        """Applies an initialisation to every layer so far, in place; layers appended later keep torch's default."""
        for layer in self.layers.values():
            layer.apply(rule)
        return self

    def image(self) -> tuple[int, int, int]:
        """The output shape (channels, height, width) of the last layer.

        Raises BadValue if the output is not three-dimensional.
        """
        if len(self.shape) != 3:
            raise BadValue("in_shape", got=list(self.in_shape), need="[channels, height, width], of images")
        channels, height, width = self.shape
        return channels, height, width


def he_fan_in(module: nn.Module) -> None:
    """Initialises a layer in place: weights ~ N(0, 2/fan_in), biases 0 (He et al. 2015, for layers before a ReLU)."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
        _zero_bias(module)


def vgg_init(module: nn.Module) -> None:
    """Initialises a layer in place by torchvision's rule for VGG.

    Weights of convolutions ~ N(0, 2/fan_out), weights of linear layers ~ N(0, 0.01^2), biases 0.
    """
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        _zero_bias(module)
    elif isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, std=0.01)
        _zero_bias(module)


def _zero_bias(module: nn.Conv2d | nn.Linear) -> None:
    if module.bias is not None:
        nn.init.zeros_(module.bias)
