"""`model.trainable`: only what it names is trained, kept and sent; the rest stays at the initial point."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import raylfl
from raylfl.errors import BadConfig
from tests.runtime.faults import carry_out, killed, outcome, strike
from tests.runtime.plain import fedavg
from tests.runtime.tiny import ONE_BY_ONE, OWNED, TINY, Points
from tests.shares import also

ALL = {
    **OWNED,
    "rounds": 3,
    "model": {"class_path": "tests.runtime.tiny.Net", "init_args": {"norm": False, "dropout": 0.0}},
    "local": {"steps": 3, "batch_size": "full", "lr": 0.05},
}
HEAD = 6 * 3 + 3  # body.4
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_a_head_is_trained_as_by_torchs_sgd_on_it_alone(runs):
    """FedAvg of six clients, each with full batches, written out; the body keeps its bits."""
    result = raylfl.run(ALL, [*runs, "model.trainable=['*4.weight', body.4.bias]"])
    module, points = raylfl.run(ALL, [*runs, "rounds=0"]).module, Points(owners=6)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    start = nn.utils.parameters_to_vector(module.body[4].parameters()).detach()
    batches = [(points.x[shard], points.targets[shard]) for shard in points.client_indices]
    expected = fedavg(module.train, start, batches, lr=0.05, trained=lambda module: module.body[4].parameters())
    torch.testing.assert_close(result.params, expected)
    after = dict(result.module.named_parameters())
    for name, value in before.items():
        assert name.startswith("body.4") or torch.equal(after[name], value)


@pytest.mark.parametrize(
    ("algorithm", "models"), [("fedavg", (1, 1)), ("scaffold", (2, 2)), also("sfl", (1 / 6, 1 / 6))]
)
def test_uploads_states_and_broadcasts_have_the_size_of_what_is_trained(runs, tmp_path, algorithm, models):
    result = raylfl.run(ALL, [*runs, f"algorithm.name={algorithm}", "model.trainable=body.4"])
    last = result.metrics[-1]
    assert (last["cost/uplink_floats"], last["cost/downlink_floats"]) == tuple(3 * 6 * HEAD * m for m in models)
    newest = max((result.run_dir / "checkpoints").iterdir())
    server = torch.load(newest / "server.pt", weights_only=True)["server"]
    assert {len(value) for value in server.values() if isinstance(value, torch.Tensor) and value.ndim} == {HEAD}
    for path in newest.glob("clients_*.pt"):
        assert {rows.shape[1] for rows in torch.load(path, weights_only=True)["states"].values()} == {HEAD}


def test_buffers_of_frozen_layers_are_still_changed_and_averaged(runs):
    """Six means and six variances travel with the head, as docs/models.md says."""
    norm = ["model.init_args.norm=true", "model.trainable=body.4"]
    result, before = raylfl.run(ALL, [*runs, *norm]), raylfl.run(ALL, [*runs, "model.init_args.norm=true", "rounds=0"])
    assert result.metrics[-1]["cost/uplink_floats"] == 3 * 6 * (HEAD + 12)
    assert not torch.equal(result.module.body[1].running_mean, before.module.body[1].running_mean)
    assert torch.equal(result.module.body[1].weight, before.module.body[1].weight)


def test_a_killed_run_resumes_with_the_same_parameters(tmp_path):
    config = {**ONE_BY_ONE, "algorithm": {"name": "scaffold"}, "rounds": 4}
    config["model"] = {**TINY["model"], "trainable": ["body.0", "body.4"]}
    carry_out(config, tmp_path / "clean", ["checkpoint.every=0"])
    killed(lambda: carry_out(config, tmp_path / "killed", fault=strike("commit", 3)))
    carry_out(config, tmp_path / "killed", resume=True)
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "clean")


@pytest.mark.parametrize(
    ("patterns", "words"),
    [
        ("body.5", "model.trainable=body.5, but must be names or patterns of what Net trains .the nearest are body."),
        ("[body.4, 'bod.*.weight']", r"model.trainable=bod.\*.weight, .* nearest are body.*weight"),
        ("3", "model.trainable=3, but must be a list"),
        ("[]", "no trainable parameters"),
    ],
)
def test_a_pattern_without_a_match_is_refused_with_the_nearest_names(runs, patterns, words):
    with pytest.raises(BadConfig, match=words):
        raylfl.run(ALL, [*runs, f"model.trainable={patterns}"])


def test_the_adapters_of_the_page_train_and_only_they_are_sent(runs, tmp_path, monkeypatch):
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "LoRA" in block)
    (tmp_path / "adapted.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    overrides = ["model.class_path=adapted.Adapted", "model.trainable=['*lora*']", "runtime.backend=local", "rounds=2"]
    result = raylfl.run("digits", [*runs, *overrides, "participation=full", "num_clients=4", "local.lr=0.1"])
    sys.modules.pop("adapted", None)
    said = re.search(r"([\d,]+) of ([\d,]+) parameters are trained", PAGE.read_text())
    trained, whole = (int(number.replace(",", "")) for number in said.groups())
    assert len(result.params) == trained
    assert sum(p.numel() for p in result.module.parameters()) == whole
    assert result.metrics[-1]["cost/uplink_floats"] == 2 * 4 * trained
    assert np.isfinite(result.metrics[-1]["test/loss"])
