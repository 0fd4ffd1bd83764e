"""Modules as users write them that the recorded step must follow; `refused_modules` has those that it must not."""

import logging
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

CLASSES = 5
HIDDEN = logging.getLogger("tests.hidden")
HIDDEN.notes = defaultdict(list)


class Net(nn.Module):
    """Cross-entropy of `forward` on batches (x, y)."""

    shape: tuple[int, ...] = (6, 8)  # of one sample

    def __init__(self):
        super().__init__()
        self.build()

    def batch(self, size):
        return torch.randn(size, *self.shape), torch.randint(0, CLASSES, (size,))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return F.cross_entropy(self(x), y)


class Residual(Net):
    def build(self):
        self.inner, self.norm = nn.Linear(48, 48), nn.BatchNorm1d(48)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(48, CLASSES)

    def forward(self, x):
        x = x.flatten(1)
        return self.out(self.drop(F.gelu(self.norm(self.inner(x))) + x))

    def training_step(self, batch, batch_idx):
        x, y = batch
        return {"loss": F.cross_entropy(self(x), y, label_smoothing=0.1)}


class Mixed(Residual):
    """A network with a forward pass in bfloat16, under its own autocast."""

    def training_step(self, batch, batch_idx):
        with torch.autocast("cpu", torch.bfloat16):
            return super().training_step(batch, batch_idx)


class Images(Net):
    shape = (3, 9, 9)

    def build(self):
        self.body = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.GroupNorm(2, 8), nn.SiLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 8, 3, stride=2, groups=4), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.Dropout2d(0.2)),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
        )

    def forward(self, x):
        return self.body(x)


class LSTM(Net):
    cell = nn.LSTM

    def build(self):
        self.rnn = self.cell(8, 7, num_layers=2, batch_first=True, dropout=0.2, bidirectional=True)
        self.out = nn.Linear(14, CLASSES)

    def forward(self, x):
        return self.out(self.rnn(x)[0][:, -1])


class Encoder(Net):
    """Two layers of attention, with dropout and a mask."""

    def build(self):
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True, activation="gelu")
        self.encoder, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, CLASSES)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(6))

    def forward(self, x):
        return self.out(self.encoder(x, mask=self.mask, is_causal=True).mean(1))


class Language(Net):
    """Embeddings tied to the output layer, a position table, two losses."""

    def build(self):
        self.words, self.places = nn.Embedding(11, 8, padding_idx=0), nn.Parameter(torch.randn(6, 8))
        self.mix = nn.Linear(8, 8)

    def batch(self, size):
        return {"text": torch.randint(0, 11, (size, 6)), "next": torch.randint(0, 11, (size, 6))}

    def training_step(self, batch, batch_idx):
        h = torch.tanh(self.mix(self.words(batch["text"]) + self.places))
        scores = h @ self.words.weight.t()
        return F.cross_entropy(scores.transpose(1, 2), batch["next"], ignore_index=0) + 0.01 * h.pow(2).mean()


class Frozen(Net):
    """A network with frozen layers, an unused parameter, a penalty, a detached target and a constant tensor."""

    def build(self):
        self.base, self.head, self.unused = nn.Linear(48, 9), nn.Linear(9, CLASSES), nn.Linear(2, 2)
        self.base.requires_grad_(False)
        self.register_buffer("weights", torch.rand(CLASSES))

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self.head(F.leaky_relu(self.base(x.flatten(1)), 0.1))
        target = F.softmax(scores.detach() / 2, dim=1)
        distilled = F.kl_div(F.log_softmax(scores, dim=1), target, reduction="batchmean")
        penalty = sum(p.abs().sum() for p in self.head.parameters())
        scale = torch.tensor([0.5, 1.5]).sum()
        return F.cross_entropy(scores, y, weight=self.weights) + distilled * scale + 1e-3 * penalty


class InPlace(Net):
    """A network with in-place operations on values of the step, a moving average in a buffer, and input noise."""

    def build(self):
        self.first, self.last = nn.Linear(48, 9), nn.Linear(9, CLASSES)
        self.register_buffer("average", torch.zeros(9))

    def forward(self, x):
        h = self.first(x.flatten(1) + 0.1 * torch.randn_like(x.flatten(1)))
        h.relu_()
        h = h.clone()
        h[:, 0] = 1.0
        h[:, 1:3] *= 2
        h.add_(0.5)
        with torch.no_grad():
            self.average.mul_(0.9).add_(h.mean(0), alpha=0.1)
        return self.last(h - self.average)


class CheckpointedDropout(Net):
    """Gradient checkpointing restores the generator, and draws masks and other numbers of two blocks again."""

    def build(self):
        self.first, self.last = nn.Linear(48, 9), nn.Linear(9, CLASSES)
        self.block = nn.Sequential(nn.Linear(9, 9), nn.Dropout(0.3), nn.Tanh(), nn.Dropout(0.3))

    def noisy(self, x):
        return self.block(x) + torch.rand_like(x) * torch.rand(9)

    def forward(self, x):
        x = self.first(x.flatten(1))
        x = checkpoint(self.noisy, x, use_reentrant=False)
        return self.last(checkpoint(self.noisy, x, use_reentrant=False))


class Hooked(Net):
    """A network with hooks on a layer and on a gradient, a weight norm, and a gradient penalty within the step."""

    def build(self):
        self.first = nn.utils.parametrizations.weight_norm(nn.Linear(48, 9))
        self.last = nn.Linear(9, CLASSES)
        self.first.register_forward_hook(lambda module, args, output: output * 2)
        self.last.bias.register_hook(lambda g: g.clamp(-0.01, 0.01))

    def training_step(self, batch, batch_idx):
        x, y = batch
        x = x.flatten(1).requires_grad_()
        scores = self.last(torch.tanh(self.first(x)))
        (g,) = torch.autograd.grad(scores.logsumexp(1).sum(), x, create_graph=True)
        return F.cross_entropy(scores, y) + 0.1 * g.pow(2).sum()


class OneHot(Residual):
    def training_step(self, batch, batch_idx):
        x, y = batch
        return (self(x).softmax(1) - F.one_hot(y, num_classes=CLASSES)).pow(2).mean()


class Popped(Net):
    """A network whose step takes the labels out of the batch, and the rest as keyword arguments."""

    def build(self):
        self.out = nn.Linear(48, CLASSES)

    def batch(self, size):
        return dict(zip(("x", "y"), super().batch(size), strict=True))

    def forward(self, x):
        return self.out(x.flatten(1))

    def training_step(self, batch, batch_idx):
        y = batch.pop("y")
        return F.cross_entropy(self(**batch), y)


class Dense(Net):
    """The base of the modules in `refused_modules`."""

    def build(self):
        self.first, self.drop, self.last = nn.Linear(48, 9), nn.Dropout(0.2), nn.Linear(9, CLASSES)
        self.prepare()

    def prepare(self):
        pass

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x.flatten(1)))))


class Contrastive(Net):
    """SimCLR: similarities of two views, without those of a sample with itself, by masks that depend on shapes only."""

    def build(self):
        self.body = nn.Linear(48, 9)

    def training_step(self, batch, batch_idx):
        x, _ = batch
        z = F.normalize(self.body(torch.cat([x, x + 0.1 * torch.randn_like(x)]).flatten(1)), dim=1)
        n = len(z)
        others = torch.ones(n, n, dtype=torch.bool).fill_diagonal_(False)
        similar = (z @ z.T)[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)
        apart = (z @ z.T).masked_select(others).view(n, n - 1)
        pairs = torch.arange(n).roll(n // 2)
        pairs = pairs - (pairs > torch.arange(n)).long()
        return F.cross_entropy(similar / 0.5, pairs) + 0.1 * apart.exp().mean()


class Centred(Dense):
    """A step that assigns buffers instead of writing to them, as in DINO; the second keeps the first's old value."""

    def build(self):
        super().build()
        self.register_buffer("centre", torch.zeros(CLASSES))
        self.register_buffer("before", torch.zeros(CLASSES))

    def training_step(self, batch, batch_idx):
        x, y = batch
        logits = self(x)
        loss = F.cross_entropy(logits * (1 + self.centre) - self.before, y)
        self.before = self.centre
        self.centre = self.centre * 0.9 + logits.detach().mean(0) * 0.1
        return loss


class Logs(Dense):
    """A network that logs its loss, an accuracy that only the log needs, and a number."""

    def prepare(self):
        self.log = None

    def training_step(self, batch, batch_idx):
        x, y = batch
        scores = self(x)
        loss = F.cross_entropy(scores, y)
        self.log("train/loss", loss.detach())
        self.log("accuracy", (scores.argmax(1) == y).float().mean(), on_epoch=True)
        self.log("size", len(y))
        return loss


class Tuned(Net):
    """A frozen backbone with batch normalisation, set to evaluation mode in every step."""

    def build(self):
        self.backbone = nn.Sequential(nn.Linear(48, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Dropout(0.5))
        self.backbone.requires_grad_(False)
        self.out = nn.Linear(9, CLASSES)

    def forward(self, x):
        self.backbone.eval()
        return self.out(self.backbone(x.flatten(1)))


class Proximal(Net):
    """A penalty towards given weights, and class weights, as plain attributes."""

    def build(self):
        self.out = nn.Linear(48, CLASSES)
        self.anchors = [torch.randn(p.shape) for p in self.out.parameters()]
        self.costs = {"classes": torch.rand(CLASSES)}

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = F.cross_entropy(self.out(x.flatten(1)), y, weight=self.costs["classes"])
        return loss + sum((p - q).pow(2).sum() for p, q in zip(self.out.parameters(), self.anchors, strict=True))


class AnchoredInBatch(Proximal):
    """A module whose batches are views of one of its attributes."""

    def build(self):
        super().build()
        self.data = torch.randn(9, *self.shape)

    def batch(self, size):
        return self.data[:size], torch.arange(size) % 5

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) + self.data.mean() * self.out.bias.sum()


class Spectral(Proximal):
    """Complex values, and sums that begin with a number, to which the step adds in place."""

    def training_step(self, batch, batch_idx):
        x, y = batch
        total = torch.tensor(0.5)
        total += super().training_step((torch.fft.fft(x).real, y), batch_idx)
        return total
