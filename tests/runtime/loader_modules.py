"""Data classes of users of Lightning and of text: loaders only, collate functions, samples of unequal length."""

import numpy as np
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset, TensorDataset, WeightedRandomSampler, random_split

from tests.runtime.tiny import Points


class Loaders(LightningDataModule):
    """The tiny points behind train, val and test loaders only; made in `setup`."""

    def __init__(self, val: bool = True, weighted: bool = False):
        super().__init__()
        self.val, self.weighted = val, weighted

    def setup(self, stage=None):
        whole = Points().train_dataset()
        if stage in ("fit", None):
            split = torch.Generator().manual_seed(0)
            self.fit, self.held_out = random_split(whole, [48, 12], generator=split)
        if stage in ("test", None):
            self.last = TensorDataset(*(t[::3] for t in whole.tensors))

    def train_dataloader(self):
        sampler = WeightedRandomSampler(torch.ones(48), 48) if self.weighted else None
        return DataLoader(self.fit, batch_size=7, shuffle=sampler is None, sampler=sampler)

    def val_dataloader(self):
        return [DataLoader(self.held_out, batch_size=5)] if self.val else None

    def test_dataloader(self):
        return DataLoader(self.last, batch_size=5)


class TwoLoaders(Loaders):
    """A data class whose loader returns two data sets."""

    def train_dataloader(self):
        return {"a": super().train_dataloader(), "b": super().train_dataloader()}


class Sentences(Dataset):
    """Token ids of unequal lengths; the label is whether a sentence has more even tokens than odd ones."""

    def __init__(self, count: int):
        rng = np.random.default_rng(count)
        self.sentences = [torch.from_numpy(rng.integers(1, 20, rng.integers(3, 12))) for _ in range(count)]
        self.targets = [int((s % 2 == 0).float().mean() > 0.5) for s in self.sentences]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, k):
        return self.sentences[k], self.targets[k]


class Text:
    """Sentences, padded by the data's own collate function."""

    def __init__(self):
        self.train_dataset, self.test_dataset = Sentences(60), Sentences(25)

    @staticmethod
    def collate_fn(samples):
        return {
            "tokens": pad_sequence([tokens for tokens, _ in samples], batch_first=True),
            "lengths": torch.tensor([len(tokens) for tokens, _ in samples]),
            "labels": torch.tensor([label for _, label in samples]),
        }


class Reader(LightningModule):
    """A mean of embeddings over the present tokens, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 8, padding_idx=0), nn.Linear(8, 2)

    def forward(self, batch):
        assert (batch["tokens"] > 0).sum(1).equal(batch["lengths"])
        return self.head(self.embedding(batch["tokens"]).sum(1) / batch["lengths"][:, None])

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self(batch), batch["labels"])

    def validation_step(self, batch, batch_idx):
        self.log("val_acc", (self(batch).argmax(1) == batch["labels"]).float().mean())
