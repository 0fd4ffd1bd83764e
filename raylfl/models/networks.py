"""The networks of the papers; details that a paper does not state are from its public code.

logistic, mlp, lenet5, vgg9 and resnet18 are those of SFL (Li & Lyu, NeurIPS 2023), tables 3 and 11; by default without
normalisation layers.
"""

from typing import Annotated, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from raylfl.components.options import Doc, Ge
from raylfl.errors import BadValue
from raylfl.models import MODELS
from raylfl.models.base import Classifier
from raylfl.models.stack import Dropout, Stack, he_fan_in, vgg_init

Norm = Literal["none", "group", "batch"]


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
        self, in_shape: tuple[int, ...] = (1, 28, 28), num_classes: int = 10, padding: int = 0, lr: float = 0.1
    ):
        stack = Stack(in_shape).conv(6, 5, padding).relu().pool().conv(16, 5).relu().pool().flatten()
        super().__init__(stack.linear(120).relu().linear(84).relu().linear(num_classes), lr)


@MODELS.register("cnn_focus", paper="FOCUS fig. 9")
class CnnFocus(Classifier):
    """Three 3x3 convolutions (16, 32, 64 channels), each with ReLU and 2x2 max-pool; linear layers of 500 and classes.

    541,094 parameters on CIFAR-10. The convolutions have padding 1: 32x32 images become 64 feature maps of 4x4. The
    paper says only "a three-layer convolutional neural network".

    dropout: applied before both linear layers; 0.25 in a widely copied tutorial network of this shape.
    """

    def __init__(
        self, in_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, lr: float = 2e-3, dropout: Dropout = 0.0
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
        self, in_shape: tuple[int, ...] = (1, 28, 28), num_classes: int = 10, dropout: Dropout = 0.2, lr: float = 0.02
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
        self, in_shape: tuple[int, ...] = (3, 32, 32), num_classes: int = 10, dropout: Dropout = 0.2, lr: float = 0.03
    ):
        stack = Stack(in_shape).conv(32, 3, padding=1).relu().pool().conv(32, 3, padding=1).relu().pool()
        stack.flatten().dropout(dropout).linear(512).relu().dropout(dropout).linear(256)
        super().__init__(stack.relu().dropout(dropout).linear(num_classes), lr)


@MODELS.register("vgg9", paper="SFL table 3; Lin 2020")
class Vgg9(Classifier):
    """VGG-9: eight 3x3 convolutions, five 2x2 max-pools, a global average pool and one linear layer.

    Channels and max-pools (M): 32,M,64,M,128,128,M,256,256,M,256,256,M, with padding 1, biases, a ReLU after each
    convolution and no normalisation; 2,308,810 parameters on CIFAR-10. Weights are initialised by torchvision's rule
    for VGG, since without normalisation torch's default makes activations nearly vanish after eight layers.
    width: channels of the first convolution; the other widths scale with it (the public code's wvgg9k1 has width 8).
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        width: Annotated[int, Ge(1), Doc("channels of the first convolution")] = 32,
        lr: float = 0.1,
    ):
        stack = Stack(in_shape)
        for factors in ((1,), (2,), (4, 4), (8, 8), (8, 8)):
            for factor in factors:
                stack.conv(factor * width, 3, padding=1).relu()
            stack.pool()
        super().__init__(stack.mean().flatten().linear(num_classes).init(vgg_init), lr)


@MODELS.register("resnet18", paper="SFL table 3; He 2016; Acar 2021")
class ResNet18(Classifier):
    """ResNet-18 for small images: a 3x3 convolution, then four stages of two blocks (64, 128, 256, 512 channels).

    11,164,362 parameters on CIFAR-10 without normalisation, 11,173,962 with it. There is no max-pool, and convolutions
    have no bias.
    norm: none (SFL's tables), group (GroupNorm with `groups` groups) or batch (BatchNorm, which updates buffers: on a
    GPU the clients of such a model run one at a time).
    groups: number of groups for norm=group; it must divide `width`.
    width: channels of the first stage; each later stage has twice as many as the stage before it.
    """

    def __init__(
        self,
        in_shape: tuple[int, ...] = (3, 32, 32),
        num_classes: int = 10,
        norm: Norm = "none",
        groups: Annotated[int, Ge(1)] = 2,
        width: Annotated[int, Ge(1), Doc("channels of the first stage")] = 64,
        lr: float = 0.1,
    ):
        if norm == "group" and width % groups:
            raise BadValue("groups", got=groups, need=f"a divisor of width={width}")
        stack = Stack(in_shape)
        channels, height, columns = stack.image()
        conv = nn.Conv2d(channels, width, 3, padding=1, bias=False)
        stem = nn.Sequential(conv, _norm(norm, width, groups), nn.ReLU())
        stack.add("stem", stem, (width, height, columns), numbered=False)
        for stage in range(4):
            for place in range(2):
                stride = 2 if stage > 0 and place == 0 else 1
                before, height, columns = stack.image()
                block = BasicBlock(before, width * 2**stage, stride, norm, groups)
                shape = (width * 2**stage, -(-height // stride), -(-columns // stride))
                stack.add("block", block, shape)
        super().__init__(stack.mean().flatten().linear(num_classes), lr)


class BasicBlock(nn.Module):
    """A residual block: relu(N(conv(relu(N(conv(x))))) + shortcut(x)), where N is the normalisation layer.

    Both convolutions are 3x3. The first one has the stride and maps `before` channels to `after`. The shortcut is the
    identity if the shape does not change, otherwise a 1x1 convolution with the stride, followed by N.
    """

    def __init__(self, before: int, after: int, stride: int, norm: Norm, groups: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(norm, after, groups)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = _norm(norm, after, groups)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            project = nn.Conv2d(before, after, 1, stride=stride, bias=False)
            self.shortcut = nn.Sequential(project, _norm(norm, after, groups))

    def forward(self, x: Tensor) -> Tensor:
        """The outputs [B, after, ceil(H/stride), ceil(W/stride)] of inputs [B, before, H, W]."""
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


def _norm(norm: Norm, channels: int, groups: int) -> nn.Module:
    if norm == "group":
        return nn.GroupNorm(groups, channels)
    return nn.BatchNorm2d(channels) if norm == "batch" else nn.Identity()
