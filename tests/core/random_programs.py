"""Modules whose forward pass is a random program: operations on rows [B, 8], each on results of earlier ones."""

import random

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.core.user_modules import CLASSES

WIDTH = 8
BACK = 4  # an operation takes one of this many last results


def written(a: Tensor, b: Tensor) -> Tensor:
    """Slices of a copy written in place, one of them through a transposed view."""
    out = a.clone()
    out[:, 2] = b[:, 3]
    out[:, ::2].mul_(b[:, ::2].tanh())
    out.t()[0] = 1.5
    return out


def without_gradient(a: Tensor, b: Tensor) -> Tensor:
    with torch.no_grad():
        scale = b.relu() * 0.1
    return a * scale + a


OF_ONE = {
    "relu": F.relu,
    "gelu": F.gelu,
    "silu": F.silu,
    "softplus": F.softplus,
    "hardswish": F.hardswish,
    "erf": torch.erf,
    "clamp": lambda a: a.clamp(-1, 1),
    "sqrt": lambda a: (a.abs() + 1).sqrt(),
    "power": lambda a: (a.abs() + 0.1) ** 1.5,
    "round": lambda a: a + a.round().detach(),
    "mask": lambda a: a * (a > 0),
    "float64": lambda a: a.double().mul(2).float(),
    "bfloat16": lambda a: a.to(torch.bfloat16).float(),
    "transposed": lambda a: a.t().contiguous().t(),
    "in place": lambda a: (a * 1.0).relu_(),
    "flip": lambda a: a.flip(1),
    "roll": lambda a: a.roll(3, 1),
    "chunk": lambda a: torch.cat(a.chunk(2, 1)[::-1], 1),
    "view": lambda a: a.view(-1, 2, 4).transpose(1, 2).reshape(-1, WIDTH),
    "pad": lambda a: F.pad(a[:, 2:], (1, 1)),
    "unfold": lambda a: a.unfold(1, 3, 1).sum(2).repeat(1, 2)[:, :WIDTH],
    "expand": lambda a: a[:, :1].expand(-1, WIDTH) + a,
    "unbind": lambda a: torch.stack(a.unbind(1)[::-1], 1),
    "split": lambda a: torch.cat([part * (k + 1) for k, part in enumerate(a.split([3, 5], 1))], 1),
    "columns": lambda a: a[:, [3, 1, 2, 0, 7, 6, 5, 4]],
    "diagonal": lambda a: (a[:, :, None] * a[:, None]).tril().diagonal(dim1=1, dim2=2),
    "softmax": lambda a: a.softmax(1),
    "log softmax": lambda a: a.log_softmax(0),
    "layer norm": lambda a: F.layer_norm(a, (WIDTH,)),
    "centred": lambda a: a - a.mean(0, keepdim=True),
    "variance": lambda a: a + a.var(1, keepdim=True, unbiased=False),
    "logsumexp": lambda a: a - a.logsumexp(1, keepdim=True),
    "cumsum": lambda a: a.cumsum(1) / WIDTH,
    "maximum": lambda a: a - a.max(1, keepdim=True).values,
    "sort": lambda a: a.sort(1).values,
    "top": lambda a: torch.cat([a.topk(4, 1).values, a[:, :4]], 1),
    "pool": lambda a: F.max_pool1d(a[:, None], 3, 1, 1)[:, 0],
    "interpolate": lambda a: F.interpolate(a[:, None], 16, mode="linear")[:, 0, ::2],
    "constant": lambda a: a * torch.tensor([1.0, 2, 3, 4, 5, 6, 7, 8]) / 4 + torch.linspace(0, 1, WIDTH),
    "checkpoint": lambda a: checkpoint(lambda b: b.tanh() * b, a, use_reentrant=False),
    "dropout": lambda a: F.dropout(a, 0.3),
    "noise": lambda a: a + torch.randn_like(a) * 0.1,
    "factors": lambda a: a * torch.empty_like(a).uniform_(0.9, 1.1),
    "permutation": lambda a: a[:, torch.randperm(WIDTH)],
    "coins": lambda a: a * torch.bernoulli(torch.full_like(a, 0.7)),
}
OF_TWO = {
    "add": lambda a, b: torch.add(a, b, alpha=0.7),
    "multiply": lambda a, b: a * b.tanh(),
    "divide": lambda a, b: a / (b.abs() + 1),
    "larger": torch.maximum,
    "where": lambda a, b: torch.where(a > b, a, b * 0.5),
    "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "outer": lambda a, b: torch.einsum("bi,bj->bij", a, b.tanh()).mean(2),
    "batched product": lambda a, b: torch.bmm(a[:, :, None], b[:, None].tanh()).sum(1),
    "gram": lambda a, b: (a @ b.t().tanh() / WIDTH) @ b,
    "cat": lambda a, b: torch.cat([a, b], 1)[:, 4:12],
    "stack": lambda a, b: torch.stack([a, b], -1).amax(-1),
    "glu": lambda a, b: F.glu(torch.cat([a, b], 1), 1),
    "cosine": lambda a, b: F.cosine_similarity(a + 0.1, b + 0.1, dim=1)[:, None] * a,
    "loss": lambda a, b: F.smooth_l1_loss(a, b) + a,
    "add in place": lambda a, b: a.clone().add_(b),
    "fill": lambda a, b: a.masked_fill(b > 0, 0.0),
    "scatter": lambda a, b: a.scatter_add(1, b.argsort(1), b),
    "gather": lambda a, b: a.gather(1, b.argsort(1)),
    "written": written,
    "without gradient": without_gradient,
}
LAYERS = {
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "group norm": lambda: nn.GroupNorm(2, WIDTH),
    "prelu": nn.PReLU,
    "weight norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, WIDTH)), nn.Conv1d(1, 1, 3, padding=1), nn.Flatten()),
}


class Program(nn.Module):
    """A random program of 3 to 20 operations; a moving mean in a buffer enters the last one."""

    def __init__(self, seed: int):
        super().__init__()
        rng = random.Random(seed)
        self.calls, self.layers = [], nn.ModuleDict()
        self.register_buffer("mean", torch.zeros(WIDTH))
        for k in range(rng.randint(3, 20)):
            operations = rng.choices([OF_ONE, OF_TWO, LAYERS], [2, 1, 1])[0]
            name = rng.choice(list(operations))
            if operations is LAYERS:
                self.layers[str(k)] = LAYERS[name]()
            places = [rng.randrange(max(0, k + 1 - BACK), k + 1) for _ in range(2 if operations is OF_TWO else 1)]
            self.calls.append((name, places, None if operations is LAYERS else operations[name]))
        self.out = nn.Linear(WIDTH, CLASSES)

    def batch(self, size: int) -> tuple[Tensor, Tensor]:
        return torch.randn(size, WIDTH), torch.randint(0, CLASSES, (size,))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        results = [x]
        for k, (_, places, function) in enumerate(self.calls):
            results.append((function or self.layers[str(k)])(*(results[place] for place in places)))
        with torch.no_grad():
            self.mean.mul_(0.9).add_(results[-1].mean(0), alpha=0.1)
        return F.cross_entropy(self.out(sum(results[-3:]) / 3 + self.mean), y)
