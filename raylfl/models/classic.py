"""Logistic regression, the multi-layer perceptron and LeNet-5, as in SFL (Li & Lyu, NeurIPS 2023), table 11."""

from __future__ import annotations

from typing import Annotated

from raylfl.components.options import Ge
from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Dropout, Stack


@MODELS.register("logistic", paper="SFL table 11")
class Logistic(Classifier):
    """Multinomial logistic regression: one linear layer with bias.

    7,850 parameters on MNIST. The loss is convex, but not strictly: it does not change if the same vector is added to
    the weights of every class.
    """

    def __init__(self, in_shape: tuple[int, ...] = (1, 28, 28), num_classes: int = 10, lr: float = 0.1):
        super().__init__(Stack(in_shape).flatten().linear(num_classes), lr)


@MODELS.register("mlp", paper="SFL table 11")
class MLP(Classifier):
    """Multi-layer perceptron: linear layers with a ReLU after each hidden one.

    50,890 parameters on MNIST by default.
    hidden: widths of the hidden layers. The default (64,) is 784-64-10 of SFL's table 11.
    FedAWARE's public code has (200, 200) for MNIST and FashionMNIST, 199,210 parameters.
    dropout: applied before each ReLU; 0.5 in SFL's public code, not mentioned in SFL's paper.
    """

    def __init__(
        self,
        hidden: tuple[Annotated[int, Ge(1)], ...] = (64,),
        in_shape: tuple[int, ...] = (1, 28, 28),
        num_classes: int = 10,
        dropout: Dropout = 0.0,
        lr: float = 0.1,
    ):
        stack = Stack(in_shape).flatten()
        for width in hidden:
            stack.linear(width).dropout(dropout).relu()
        super().__init__(stack.linear(num_classes), lr)


@MODELS.register("lenet5", paper="LeCun 1998; SFL table 11")
class LeNet5(Classifier):
    """LeNet-5 with ReLU and max-pool: two 5x5 convolutions of 6 and 16 channels, linear layers of 120, 84, classes.

    A ReLU and a 2x2 max-pool follow each convolution. 44,426 parameters on MNIST.
    padding: padding of the first convolution. With 0, as in SFL's public code, 28x28 images become 16 feature maps of
    4x4 before the linear layers: 44,426 parameters. With 2, they become LeCun's 32x32 inputs and 16 feature maps of
    5x5: 61,706 parameters. FedLab's CNN for CIFAR-10 (62,006 parameters) is this network on 3x32x32 images without
    padding.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (1, 28, 28),
        num_classes: int = 10,
        padding: int = 0,
        lr: float = 0.1,
    ):
        stack = Stack(in_shape).conv(6, 5, padding).relu().pool().conv(16, 5).relu().pool().flatten()
        super().__init__(stack.linear(120).relu().linear(84).relu().linear(num_classes), lr)
