"""Run directories of earlier versions resume with the same bits; newer versions are refused (docs/formats.md)."""

import json

import pytest
import yaml

import raylfl
from raylfl.cli import main
from raylfl.config.load import load_config
from raylfl.config.text import FORMAT
from raylfl.errors import BadConfig
from raylfl.report.runs import read_runs
from raylfl.runtime.records.state_files import encode
from raylfl.tune import sweep
from tests.runtime.faults import carry_out, killed, log_of, outcome, strike
from tests.runtime.tiny import ONE_BY_ONE as TINY

SCAFFOLD = {**TINY, "algorithm": {"name": "scaffold"}}


def rewrite(folder, change):
    """Changes the config in config.yaml and in every checkpoint of a run directory."""
    (folder / "config.yaml").write_text(yaml.safe_dump(change(yaml.safe_load((folder / "config.yaml").read_text()))))
    for path in folder.glob("checkpoints/*/manifest.json"):
        content = json.loads(path.read_text())
        del content["manifest_sha256"]
        path.write_text(encode({**content, "config": change(content["config"])}))


def only(config, said):
    """The part of a config that `said` mentions: the file of a version without any other option."""
    return {
        key: only(value, said[key]) if isinstance(value, dict) and isinstance(said[key], dict) else value
        for key, value in config.items()
        if key in said
    }


def test_a_run_of_a_version_without_today_s_options_resumes_with_the_same_bits(tmp_path):
    carry_out(SCAFFOLD, tmp_path / "clean", ["checkpoint.every=0"])
    killed(lambda: carry_out(SCAFFOLD, tmp_path / "run", fault=strike("collect", 4)))
    rewrite(tmp_path / "run", lambda saved: only(saved, SCAFFOLD))
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (saved["algorithm"], set(saved)) == (SCAFFOLD["algorithm"], set(SCAFFOLD))
    with pytest.raises(BadConfig, match=r"algorithm.momentum: 0.0 -> 0.5"):  # newer than the run
        raylfl.resume(tmp_path / "run", ["rounds=8", "algorithm.momentum=0.5"], trust=True)
    raylfl.resume(tmp_path / "run", trust=True)
    assert "resumed at round 4" in log_of(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "clean")
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["format"] == FORMAT


def test_a_run_of_a_newer_format_is_refused_everywhere_in_one_sentence(tmp_path, capsys):
    carry_out(TINY, tmp_path / "run")
    rewrite(tmp_path / "run", lambda config: {**config, "format": FORMAT + 1, "key_of_the_future": 1})
    words = f"has format {FORMAT + 1}, which a newer raylfl writes; this one reads {FORMAT}: use the version that wrote"
    file = tmp_path / "run" / "config.yaml"
    for call in (lambda: raylfl.resume(file.parent), lambda: raylfl.run(file), lambda: raylfl.load(file.parent)):
        with pytest.raises(BadConfig) as refused:
            call()
        assert str(refused.value).startswith(f"{file} {words}")
    assert main(["resume", str(file.parent)]) == 2
    assert capsys.readouterr().err.splitlines() == [f"raylfl: {file} {words} it"]
    with pytest.raises(BadConfig, match="which a newer raylfl writes"):
        read_runs(file.parent)


@pytest.mark.parametrize(
    ("number", "words"), [(FORMAT - 1, "which an older raylfl writes"), ("two", "format=two, but")]
)
def test_a_number_that_is_not_this_one_is_refused(tmp_path, number, words):
    with pytest.raises(BadConfig, match=words):
        load_config({**TINY, "format": number})


def test_a_saved_config_names_its_format_and_a_config_may(tmp_path, runs):
    folder = raylfl.run({**TINY, "rounds": 0, "format": FORMAT}, runs).run_dir
    assert (folder / "config.yaml").read_text().startswith(f"format: {FORMAT}\n")
    assert "format" not in load_config(folder / "config.yaml").resolved


def test_a_sweep_of_a_newer_format_is_refused_and_left_unchanged(tmp_path, capsys):
    file = tmp_path / "sweep.yaml"
    for number, writer in ((FORMAT + 1, "a newer raylfl"), (FORMAT - 1, "an older raylfl")):
        file.write_text(text := f"format: {number}\nname: mine\nbase: {{rounds: 2}}\nkey_of_the_future: 1\n")
        words = f"raylfl: {file} has format {number}, which {writer} writes; this one reads {FORMAT}: use the version"
        for command in (["sweep", "--resume", str(tmp_path)], ["sweep", str(file)]):
            assert main(command) == 2
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(words)
        assert [*tmp_path.iterdir()] == [file]
        assert file.read_text() == text


@pytest.mark.parametrize(
    ("content", "words"),
    [(b'{"[:\xff', "not readable yaml"), (b"", "damaged"), (b"- 1", "keys and values"), (b"name: mine", "damaged")],
)
def test_a_damaged_sweep_file_is_refused_by_name(tmp_path, content, words):
    (tmp_path / "sweep.yaml").write_bytes(content)
    with pytest.raises(BadConfig, match=words) as refused:
        sweep.resume(tmp_path)
    assert str(refused.value).startswith(str(tmp_path / "sweep.yaml"))
