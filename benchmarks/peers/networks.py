"""The networks of the workloads as plain torch modules, which every side uses."""

from torch import nn


def pfl() -> nn.Sequential:
    """pfl-research's `simple_cnn` for CIFAR-10, Xavier-uniform weights; 1,626,442 parameters."""
    net = nn.Sequential(
        *(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)),
        *(nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Dropout(0.5), nn.Linear(128, 10)),
    )
    for module in net:
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    return net


def blaze() -> nn.Sequential:
    """PyTorch's tutorial network for CIFAR-10, in BlazeFL's benchmark; 62,006 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def flute() -> nn.Sequential:
    """FLUTE's logistic regression on MNIST, whose cross-entropy is that of sigmoid(W x + b); 7,850 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 10), nn.Sigmoid())


NETWORKS = {"pfl": pfl, "blaze": blaze, "flute": flute}
