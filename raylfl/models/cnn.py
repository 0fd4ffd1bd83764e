"""The small convolutional networks of the papers; details that a paper does not state are from its public code."""

from __future__ import annotations

from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Dropout, Stack, he_fan_in, vgg_init


@MODELS.register("cnn_focus", paper="FOCUS fig. 9")
class CnnFocus(Classifier):
    """Three 3x3 convolutions (16, 32, 64 channels), each with ReLU and 2x2 max-pool; linear layers of 500 and classes.

    541,094 parameters on CIFAR-10. The convolutions have padding 1: 32x32 images become 64 feature maps of 4x4. The
    paper says only "a three-layer convolutional neural network".

    dropout: applied before both linear layers; 0.25 in a widely copied tutorial network of this shape.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        lr: float = 2e-3,
        dropout: Dropout = 0.0,
    ):
        stack = Stack(in_shape)
        for channels in (16, 32, 64):
            stack.conv(channels, 3, padding=1).relu().pool()
        stack.flatten().dropout(dropout).linear(500).relu().dropout(dropout).linear(num_classes)
        super().__init__(stack, lr)


@MODELS.register("cnn_sfl", paper="SFL table 11; Wang & Ji 2022")
class CnnSfl(Classifier):
    """Two 5x5 convolutions (32 channels), each with ReLU and 2x2 max-pool; linear layers of 128 and classes.

    228,586 parameters on FashionMNIST; padding 2. As in the public code, layers before a ReLU have He initialisation
    with zero biases, and the last layer has torch's default initialisation.
    """

    def __init__(self, in_shape: tuple[int, ...] = (1, 28, 28), num_classes: int = 10, lr: float = 0.1):
        stack = Stack(in_shape)
        for _ in range(2):
            stack.conv(32, 5, padding=2).relu().pool()
        super().__init__(stack.flatten().linear(128).relu().init(he_fan_in).linear(num_classes), lr)


@MODELS.register("cnn_fedaware", paper="FedAWARE table 1")
class CnnFedaware(Classifier):
    """Three 3x3 convolutions (32, 64, 64 channels) with ReLU, two 2x2 max-pools; linear layers of 64 and classes.

    122,570 parameters on CIFAR-10, no padding; max-pools after the first two convolutions. The paper says "a CNN";
    layers and initialisation are from its public code (ToyCifarNet), which uses `mlp` with hidden (200, 200) for MNIST
    and FashionMNIST.
    """

    def __init__(self, in_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, lr: float = 0.01):
        stack = Stack(in_shape).conv(32, 3).relu().pool().conv(64, 3).relu().pool().conv(64, 3).relu()
        super().__init__(stack.flatten().linear(64).relu().linear(num_classes).init(vgg_init), lr)


@MODELS.register("cnn_fedacs_mnist", paper="FedACS table 3")
class CnnFedacsMnist(Classifier):
    """FedACS's network for MNIST: C(1,10) - C(10,20) - DL(50) - L(10).

    C(in, out): 3x3 convolution with padding 1; D: dropout 0.2; L(out): linear layer. 786,480 parameters on MNIST. The
    paper's string, read literally, has no activation: apart from dropout the network is a linear map of rank at most
    10.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (1, 28, 28),
        num_classes: int = 10,
        dropout: Dropout = 0.2,
        lr: float = 0.02,
    ):
        stack = Stack(in_shape).conv(10, 3, padding=1).conv(20, 3, padding=1).flatten()
        super().__init__(stack.dropout(dropout).linear(50).linear(num_classes), lr)


@MODELS.register("cnn_fedacs_cifar", paper="FedACS table 3")
class CnnFedacsCifar(Classifier):
    """FedACS's network for CIFAR-10: C(3,32) - RMC(32,32) - RML(256) - RL(64) - RL(10).

    C(in, out): 3x3 convolution with padding 1; R: ReLU; M: 2x2 max-pool; L(out): linear layer. 551,786 parameters on
    CIFAR-10.
    """

    def __init__(self, in_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, lr: float = 0.03):
        stack = Stack(in_shape).conv(32, 3, padding=1).relu().pool().conv(32, 3, padding=1).relu().pool()
        super().__init__(stack.flatten().linear(256).relu().linear(64).relu().linear(num_classes), lr)


@MODELS.register("cnn_fedacs_cinic", paper="FedACS table 3")
class CnnFedacsCinic(Classifier):
    """FedACS's network for CINIC-10: C(3,32) - RMC(32,32) - RMDL(512) - RDL(256) - RDL(10).

    C(in, out): 3x3 convolution with padding 1; R: ReLU; M: 2x2 max-pool; D: dropout 0.2; L(out): linear layer.
    1,193,130 parameters on CINIC-10.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        dropout: Dropout = 0.2,
        lr: float = 0.03,
    ):
        stack = Stack(in_shape).conv(32, 3, padding=1).relu().pool().conv(32, 3, padding=1).relu().pool()
        stack.flatten().dropout(dropout).linear(512).relu().dropout(dropout).linear(256)
        super().__init__(stack.relu().dropout(dropout).linear(num_classes), lr)
