"""The character model against torch's own transformer layers; its data as windows of texts; perplexity."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import raylfl
from raylfl.data.text import BUNDLED, Texts
from raylfl.errors import BadConfig, BadValue, DataMissing
from raylfl.models.text import TextLM

HERE = ["runtime.backend=local", "rounds=2", "local.steps=4"]


def test_the_model_is_torchs_transformer_with_a_causal_mask():
    model = TextLM((8,), 11, width=12, heads=3, blocks=2).double()
    layers = []
    for block in model.blocks:
        layer = nn.TransformerEncoderLayer(12, 3, 48, 0.0, "gelu", batch_first=True, norm_first=True).double()
        pairs = [
            (layer.self_attn.out_proj, block.out),
            (layer.linear1, block.mlp[0]),
            (layer.linear2, block.mlp[2]),
            (layer.norm1, block.norm1),
            (layer.norm2, block.norm2),
        ]
        for theirs, ours in pairs:
            theirs.load_state_dict(ours.state_dict())
        layer.self_attn.in_proj_weight.data.copy_(block.qkv.weight)
        layer.self_attn.in_proj_bias.data.copy_(block.qkv.bias)
        layers.append(layer)
    x = torch.randint(0, 11, (4, 8), generator=torch.Generator().manual_seed(0))
    z = model.characters(x) + model.places(torch.arange(8))
    for layer in layers:
        z = layer(z, src_mask=torch.full((8, 8), -torch.inf, dtype=torch.float64).triu(1), is_causal=True)
    torch.testing.assert_close(model(x), model.head(model.norm(z)), rtol=1e-10, atol=1e-12)


def test_windows_are_pieces_of_the_texts_and_the_test_is_what_training_never_sees():
    data, texts = Texts(length=16), [path.read_text() for path in sorted(BUNDLED.glob("*.txt"))]
    assert len(texts) == 8 == len(data.client_indices)

    def read(row):
        return "".join(data.characters[int(k)] for k in row)

    for k, (text, own) in enumerate(zip(texts, data.client_indices, strict=True)):
        seen = text[: round(0.8 * len(text))]
        for number, index in enumerate(own):
            x, y = data.train_dataset[index]
            assert (read(x), read(y)) == (seen[8 * number :][:16], seen[8 * number + 1 :][:16])
            assert data.targets[index] == k
    held_out = "".join(read(x) for x, _ in data.test_dataset)
    assert held_out.startswith(texts[0][round(0.8 * len(texts[0])) :][:160])


def test_it_learns_and_its_local_steps_are_replayed_between_evaluations(runs):
    """Evaluations change the metric object, which the training step does not use.

    Perplexity is e to the mean loss of the whole test set, which is measured in pieces of which the last is smaller.
    """
    options = ["runtime.backend=local", "rounds=4", "eval.every=1", "eval.batch_size=70", "runtime.step=recorded"]
    result = raylfl.run("text_lm", [*runs, *options])
    assert 0 < result.metrics[-1]["test/accuracy"] < 1
    perplexities = [row["test/perplexity"] for row in result.metrics]
    assert perplexities == pytest.approx([math.exp(row["test/loss"]) for row in result.metrics], rel=1e-5)
    assert perplexities == sorted(perplexities, reverse=True)
    assert perplexities[-1] < 16 < len(Texts().characters)


def test_a_folder_of_texts_of_ones_own_is_one_client_a_file(runs, tmp_path):
    for name, letters in (("a", "abc"), ("b", "xyz"), ("c", "abz")):
        (tmp_path / f"{name}.txt").write_text("".join(np.random.default_rng(0).choice(list(letters), 400)))
    data = Texts(str(tmp_path), length=8)
    assert (data.num_classes, len(data.client_indices)) == (6, 3)
    result = raylfl.run("text_lm", [*runs, *HERE, f"data.init_args.path={tmp_path}", "data.init_args.length=8"])
    assert len(result.metrics) == 2


def test_texts_that_are_missing_or_too_short_are_refused(runs, tmp_path):
    with pytest.raises(DataMissing, match=r"expected a folder of \*.txt files, one a client"):
        Texts(str(tmp_path))
    (tmp_path / "a.txt").write_text(100 * "a")
    with pytest.raises(BadValue, match=r"length=32, but must be at most 19: a.txt has 100 characters"):
        Texts(str(tmp_path))
    assert len(Texts(str(tmp_path), length=19).test_dataset) == 1
    with pytest.raises(BadConfig, match="width=33, but must be a multiple of heads=2"):
        raylfl.run("text_lm", [*runs, *HERE, "model.init_args.width=33"])
