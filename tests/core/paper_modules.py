"""Modules as in the code of papers: fine-tuning, prototypes, distillation, contrastive and proximal losses."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from tests.core.user_modules import CLASSES, Net


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
