"""Texts as sequences of characters, for language models; each text is the data of one client."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from raylfl.components.options import Doc, Ge
from raylfl.data import DATA
from raylfl.data.base import DataSource, tensors
from raylfl.errors import BadValue, DataMissing

BUNDLED = Path(__file__).with_name("texts")
TEST_SHARE = 0.2


@DATA.register("texts")
class Texts(DataSource):
    """Texts, cut into windows of characters; a model predicts the next character from each position of a window.

    Samples are (x [length], y [length]), int64 codes of characters; y is x shifted by one character. The last fifth of
    each text is the test set. With `partition: natural` each text is a client; for partitions by label, the label of a
    window is the number of its text.
    path: a folder of `*.txt` files in UTF-8; null: beginnings of eight works in the public domain, 16 kB.
    length: training windows overlap by half.
    """

    def __init__(
        self, path: str | None = None, length: Annotated[int, Ge(2), Doc("the number of characters in a window")] = 32
    ):
        files = sorted((BUNDLED if path is None else Path(path).expanduser()).glob("*.txt"))
        if not files:
            raise DataMissing(f"data.init_args.path={path}: expected a folder of *.txt files, one a client")
        texts = {file.name: file.read_text(encoding="utf-8") for file in files}
        self.characters = sorted(set("".join(texts.values())))
        self.num_classes, self.in_shape = len(self.characters), (length,)
        self.train_dataset, self.targets = self._windows(texts, length, training=True)
        self.test_dataset, _ = self._windows(texts, length, training=False)
        owners = self.targets.numpy()
        self.client_indices = [np.flatnonzero(owners == k).tolist() for k in range(len(texts))]

    def _windows(self, texts: dict[str, str], length: int, training: bool) -> tuple[TensorDataset, Tensor]:
        """Windows and the number of each one's text: of the first four fifths of a text to train, else of the rest."""
        numbers = {character: k for k, character in enumerate(self.characters)}
        rows: list[list[int]] = []
        owners: list[int] = []
        for k, (name, text) in enumerate(texts.items()):
            cut = round((1.0 - TEST_SHARE) * len(text))
            part = text[:cut] if training else text[cut:]
            step = max(1, length // 2) if training else length
            starts = range(0, len(part) - length, step)
            if not starts:
                need = f"at most {len(text) // 5 - 1}: {name} has {len(text)} characters, a fifth of them for the test"
                raise BadValue("length", got=length, need=need)
            rows += [[numbers[c] for c in part[at : at + length + 1]] for at in starts]
            owners += [k] * len(starts)
        windows = torch.tensor(rows)
        return tensors(windows[:, :-1], windows[:, 1:]), torch.tensor(owners)
