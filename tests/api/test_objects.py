"""Objects from Python: runs have the bits of the equivalent config, and can be resumed; on Ray: test_ray.py."""

import functools
import os
import threading
from dataclasses import dataclass

import pytest
import torch
import yaml

import raylfl
from raylfl.algorithms.fedprox import FedProx
from raylfl.cli import main
from raylfl.errors import BadConfig
from raylfl.heterogeneity.links.bernoulli import Bernoulli as Lossy
from raylfl.heterogeneity.participation.availability import Bernoulli as Coins
from raylfl.heterogeneity.participation.uniform import Uniform
from raylfl.heterogeneity.partition.proportions import Dirichlet
from tests.runtime.tiny import ONE_BY_ONE as TINY
from tests.runtime.tiny import Net, Points

WORLD = {
    "partition": Dirichlet(alpha=2.0, min_size=1),
    "participation": Uniform(size=4),
    "availability": Coins(p=0.8),
    "link": Lossy(q=0.1),
    "algorithm": FedProx(mu=0.1),
}
SAID = [
    "algorithm={name: fedprox, mu: 0.1}",
    "partition={name: dirichlet, alpha: 2.0, min_size: 1}",
    "participation={name: uniform, size: 4, availability: {name: bernoulli, p: 0.8}}",
    "link={name: bernoulli, q: 0.1}",
]


def make_net(width=6):
    return Net(width=width)


def local_class():
    class Own(Net):
        pass

    return Own


@dataclass
class Slow(FedProx):
    """A user's algorithm in an importable module."""


def saved(result):
    return yaml.safe_load((result.run_dir / "config.yaml").read_text())


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The parameters of the run with the class path in the config."""
    return raylfl.run(TINY, [f"logging.dir={tmp_path_factory.mktemp('plain')}"]).params


def test_objects_that_a_config_can_name_are_written_into_it(runs):
    ours = raylfl.run(TINY, runs, model=Net, data=Points, **WORLD)
    said = raylfl.run(TINY, [*runs, *SAID])
    config = saved(ours)
    assert torch.equal(ours.params, said.params)
    assert {**config, "logging": 0} == {**saved(said), "logging": 0}
    assert not (ours.run_dir / "objects.json").exists()
    assert torch.equal(raylfl.run(ours.run_dir / "config.yaml", runs).params, said.params)


def test_a_class_and_a_factory_give_the_bits_of_the_class_path(runs, plain):
    for model in (Net, make_net, lambda: Net(), functools.partial(Net, width=6), local_class()):
        assert torch.equal(raylfl.run(TINY, runs, model=model).params, plain)


def test_lambdas_and_local_functions_of_one_call_are_told_apart(runs):
    """They share module and name: the digest of their content is part of the class path."""

    def factory(width):
        return lambda: Net(width=width)

    def of(width):
        def made():
            return Net(width=width)

        return made

    small = ["rounds=0", *runs]
    paths = set()
    for make in (factory, of):
        for width in (6, 7):
            result = raylfl.run(TINY, small, model=make(width))
            assert result.module.body[0].out_features == width
            paths.add(saved(result)["model"]["class_path"])
    assert len(paths) == 4
    again = [saved(raylfl.run(TINY, small, model=factory(6)))["model"]["class_path"] for _ in range(2)]
    assert again[0] == again[1]  # seeds of one setting are pooled


def test_an_instance_is_the_initial_model_and_is_not_changed(runs):
    net = Net(norm=False)
    before = torch.nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    start = raylfl.run(TINY, [*runs, "rounds=0"], model=net)
    assert torch.equal(start.params, before)
    raylfl.run(TINY, [*runs, "rounds=1"], model=net)
    assert torch.equal(torch.nn.utils.parameters_to_vector(net.parameters()).detach(), before)


def test_two_instances_of_one_class_are_two_settings(runs):
    one, other = (saved(raylfl.run(TINY, [*runs, "rounds=0"], data=Points(spoilt=s))) for s in (None, 59))
    assert one["data"] != other["data"]


def test_overrides_change_the_options_of_objects_but_not_of_an_instance(runs):
    overrides = ["rounds=1", "algorithm.mu=0.3", "model.init_args.width=5"]
    result = raylfl.run(TINY, [*runs, *overrides], model=local_class(), algorithm=Slow(mu=0.1))
    assert saved(result)["algorithm"]["mu"] == 0.3
    assert saved(result)["model"]["init_args"] == {"width": 5}
    assert result.module.body[0].out_features == 5
    with pytest.raises(BadConfig, match=r"model.init_args=.* left out: model is made already"):
        raylfl.run(TINY, [*runs, "model.init_args.width=3"], model=Net())


def test_options_of_the_config_reach_a_class_given_as_an_object(runs):
    """`{"model": {"init_args": ...}}` beside model=Net, for each group and each kind of class and factory."""
    config = {**TINY, "model": {"init_args": {"width": 7}}, "data": {"init_args": {"owners": 6}}}
    config |= {"algorithm": {"mu": 0.7}, "partition": {"alpha": 3.0, "min_size": 1}, "link": {"q": 0.05}}
    config["participation"] = {"size": 2, "availability": {"p": 0.9}}
    given = {"algorithm": Slow, "partition": Dirichlet, "link": Lossy, "participation": Uniform, "availability": Coins}
    for model in (Net, local_class(), make_net, functools.partial(Net, norm=False)):
        result = raylfl.run(config, [*runs, "rounds=0"], model=model, data=Points, **given)
        whole = saved(result)
        assert result.module.body[0].out_features == 7 == whole["model"]["init_args"]["width"]
        assert whole["data"]["init_args"] == {"owners": 6}
        assert (whole["algorithm"]["mu"], whole["partition"]["alpha"], whole["link"]["q"]) == (0.7, 3.0, 0.05)
        assert (whole["participation"]["size"], whole["participation"]["availability"]["p"]) == (2, 0.9)
    other = {**config, "algorithm": {"name": "fedprox", "mu": 0.7}}
    named = raylfl.run(other, [*runs, "rounds=0"], model=Net, data=Points, **given)
    assert saved(named)["algorithm"]["mu"] == Slow().mu  # these options belonged to another class


def test_algorithms_by_name_class_and_instance_are_compared_over_seeds(runs):
    runs = [*runs, "rounds=2"]
    results = raylfl.compare(TINY, runs, ["fedavg", Slow, FedProx(mu=0.5)], seeds=[4, 7], model=local_class())
    named = [(saved(r)["algorithm"]["name"], saved(r)["seed"]) for r in results]
    assert named == [(name, seed) for seed in (4, 7) for name in ("fedavg", "Slow", "fedprox")]
    alone = raylfl.run(TINY, [*runs, "algorithm={name: fedprox, mu: 0.5}", "seed=7"], model=local_class())
    assert torch.equal(results[5].params, alone.params)


def test_two_settings_of_an_algorithm_are_compared_and_equal_ones_refused(runs):
    runs = [*runs, "rounds=0"]
    instances = raylfl.compare(TINY, runs, [FedProx(mu=0.1), FedProx(mu=0.5)])
    assert [saved(r)["algorithm"]["mu"] for r in instances] == [0.1, 0.5]
    entries = raylfl.compare(TINY, runs, [{"name": "fedprox", "mu": mu} for mu in (0.1, 0.5)])
    assert [r.run_dir for r in entries] == [r.run_dir for r in instances]
    with pytest.raises(BadConfig, match="algorithm fedprox with seed 0 is there twice: each setting"):
        raylfl.compare(TINY, runs, [FedProx(mu=0.5), {"name": "fedprox", "mu": 0.5}])


# -- resuming --------------------------------------------------------------------------------------------------


@pytest.fixture
def begun(runs, capsys):
    """Three of six rounds with a class and a data set that the config cannot name."""
    result = raylfl.run(TINY, [*runs, "rounds=3"], model=local_class(), data=Points())
    return result, capsys.readouterr().err


def test_a_run_that_its_config_cannot_resume_prints_one_line(begun):
    result, said = begun
    assert len(said.splitlines()) == 1
    assert "local_class.<locals>.Own" in said
    assert f"objects.pkl keeps what it needs: raylfl resume {result.run_dir} --trust" in said
    assert said.strip().removeprefix("raylfl: ") in (result.run_dir / "log.txt").read_text()


def test_the_command_line_resumes_it_with_trust_and_names_the_remedy_without(begun, plain, capsys):
    folder = begun[0].run_dir
    with pytest.raises(BadConfig, match=r"trust=True.* or from Python raylfl.resume\(.*model=..., data=...\)"):
        raylfl.resume(folder, ["rounds=6"])
    assert main(["resume", str(folder), "rounds=6"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "local_class.<locals>.Own, tests.runtime.tiny.Points@" in said
    assert (
        f"which its config cannot name: raylfl resume {folder} --trust (from Python trust=True) runs the code" in said
    )
    assert main(["resume", str(folder), "--trust", "rounds=6"]) == 0
    assert torch.equal(raylfl.load(folder, trust=True).params, plain)


def test_it_is_resumed_with_the_objects_given_again(begun, plain):
    with pytest.raises(BadConfig, match=r"data=\.\.\."):
        raylfl.resume(begun[0].run_dir, ["rounds=6"], model=local_class())
    resumed = raylfl.resume(begun[0].run_dir, ["rounds=6"], model=local_class(), data=Points())
    assert torch.equal(resumed.params, plain)


def test_kept_objects_are_not_loaded_without_trust_nor_when_damaged(begun, tmp_path):
    folder = begun[0].run_dir

    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "sprung"),)

    import pickle

    (folder / "objects.pkl").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(BadConfig, match="cannot name"):
        raylfl.resume(folder)
    with pytest.raises(BadConfig, match="does not match its checksum"):
        raylfl.resume(folder, trust=True)
    assert not (tmp_path / "sprung").exists()


def test_what_cannot_be_pickled_is_named_and_the_run_goes_on(runs, capsys):
    data = Points()
    data.handle = threading.Lock()
    result = raylfl.run(TINY, [*runs, "rounds=1"], data=data)
    assert "is not kept (" in capsys.readouterr().err
    with pytest.raises(BadConfig) as caught:
        raylfl.resume(result.run_dir, ["rounds=2"], trust=True)
    assert "data=..." in str(caught.value)
    assert "trust" not in str(caught.value)
    assert len(raylfl.resume(result.run_dir, ["rounds=2"], data=data).metrics) == 2


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("objects", "words"),
    [
        ({"modell": Net}, "unknown argument modell; known here: model, data"),
        ({"model": Points}, "must be a LightningModule"),
        ({"model": Points()}, "must be a LightningModule"),
        ({"model": type("Net", (), {"__module__": "pytorch_lightning.core"})}, "import lightning.pytorch instead"),
        ({"algorithm": Net}, "but must be a dataclass derived from raylfl"),
        ({"algorithm": 3}, "algorithm=3, but must be a class, an instance or a factory of Algorithm"),
        ({"partition": lambda: 1 / 0}, r"partition: <lambda>\(\) raised ZeroDivisionError"),
        ({"data": object()}, "data class object has no train_dataset"),
        ({"availability": Coins(p=0.5), "participation": "full"}, "give participation as an object"),
    ],
)
def test_mistakes_are_refused_before_the_run(runs, objects, words):
    with pytest.raises(BadConfig, match=words):
        raylfl.run(TINY, runs, **objects)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: raylfl.run(TINY, "rounds=2,seed=1"), r"overrides='.*', .* overrides=\['rounds=2', 'seed=1'\]"),
        (lambda: raylfl.run(TINY, "local.steps={uniform: [1, 2]}"), r"overrides=\['local.steps={uniform: \[1, 2\]}'\]"),
        (lambda: raylfl.run([TINY], "rounds=2"), r"overrides=\['rounds=2'\]"),
        (lambda: raylfl.compare(TINY, "rounds=2", ["fedavg"]), r"overrides=\['rounds=2'\]"),
        (lambda: raylfl.compare(TINY, [], "fedavg,focus"), r"algorithms=\['fedavg', 'focus'\]"),
        (lambda: raylfl.compare(TINY, [], {"name": "fedavg"}), r"algorithms=\[{'name': 'fedavg'}\]"),
        (lambda: raylfl.compare(TINY, [], ["fedavg"], seeds=3), r"seeds=\[3\]"),
        (lambda: raylfl.run(TINY, callbacks=raylfl.Callback()), r"callbacks=<.*>, but must be a list"),
        (
            lambda: raylfl.compare(TINY, [], ["fedavg"], callbacks=raylfl.Callback()),
            "callbacks=<.*>, but must be a list",
        ),
        (lambda: raylfl.resume("runs", callbacks=raylfl.Callback()), "callbacks=<.*>, but must be a list"),
        (lambda: raylfl.runs("runs", "seed=0"), r"where=\['seed=0'\]"),
    ],
)
def test_a_single_text_or_object_in_place_of_a_list_is_refused_before_anything_is_written(
    call, words, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadConfig, match=words):
        call()
    assert list(tmp_path.iterdir()) == []
