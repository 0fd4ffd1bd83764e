"""The command line: what each command prints, and the files that it writes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from rich.table import Table

from raylfl.cli import main
from raylfl.cli.commands import KINDS
from raylfl.config.find import FOLDERS, config_names
from raylfl.config.load import load_config
from raylfl.config.registries import KINDS as REGISTERED
from raylfl.python.api import Progress
from raylfl.python.console import Watcher, print_table, say, status_line
from raylfl.runtime.records.run_dir import RunDirectory
from raylfl.tune.journal import Journal, Trial
from tests.report.synthetic import rows_of, write_run

PLAIN = ["runtime.step=autograd", "runtime.vectorize=never", "runtime.layout=contiguous"]  # half the time: no proofs
SMALL = ["rounds=3", "num_clients=4", "partition=iid", "runtime.backend=local", "logging.report=false", *PLAIN]
RUN = ["run", "digits", *SMALL]
TIME = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"  # before the lines of a run, without a terminal


def lines_of(path):
    return Path(path).read_text().splitlines()


def test_a_message_of_a_run_is_one_line_in_a_file(tmp_path, capsys):
    message = "worker 2 was lost " * 20
    parts = SimpleNamespace(config=SimpleNamespace(top=SimpleNamespace(rounds=9)))
    Watcher()(Progress(parts, tmp_path, {"round": 0, "time/round": 0.1}, [message], None))
    assert message.strip() in capsys.readouterr().out.splitlines()[0]


def test_texts_are_printed_as_they_are_and_control_characters_as_escapes(capsys):
    """rich would take [bold] for markup and :apple: for a picture, and a terminal obeys ESC."""
    table = Table("[b] key")
    table.add_row("[bold]x\x1b[31m :apple: [/]\u2009\u202e")
    print_table(table)
    say("[bold]y\x1b[31m :apple: \t\u202e")
    out = capsys.readouterr().out
    assert "[b] key" in out
    assert "[bold]x\\x1b[31m :apple: [/]\u2009\\u202e" in out
    assert "[bold]y\\x1b[31m :apple: " in out
    assert not set(out) & {"\x1b", "\u202e"}


def test_no_message_of_an_error_has_control_characters(call):
    code, out, err = call("run", "digits", "algorithm.name=\x1b[31mfocus")
    assert code == 2
    assert "algorithm.name=\\x1b[31mfocus" in err
    assert "\x1b" not in out + err


def test_a_folder_of_runs_is_no_run_but_names_those_in_it(call, fresh):
    for name in ("a", "b"):
        (fresh / "runs" / "digits" / name).mkdir(parents=True)
        (fresh / "runs" / "digits" / name / "config.yaml").touch()
    for folder in ("runs", "runs/digits"):
        code, _, err = call("resume", folder)
        assert code == 2
        assert f"has no config.yaml; `raylfl runs {fresh / folder}` lists the 2 runs in it, such as {fresh}" in err


@pytest.mark.parametrize(("option", "key"), [("--rounds", "rounds=..."), ("--local.lr=0.1", "local.lr=0.1")])
def test_a_key_with_dashes_is_refused_with_its_form(option, key, capsys):
    with pytest.raises(SystemExit):
        main(["run", "digits", option, "5"])
    assert f"unrecognised: {option}; config keys have no dashes: {key}\n" in capsys.readouterr().err


def test_run_trains_and_prints_the_run_directory(call, fresh, monkeypatch):
    """Plain lines also in a notebook's cell, where FORCE_COLOR is set: a bar would be hundreds of lines."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, out, err = call(*RUN)
    assert (code, err) == (0, "")
    run = re.search(r"^run +(.+)$", out, re.MULTILINE)[1]
    folder = fresh / run
    assert len(lines_of(folder / "metrics.jsonl")) == 3
    dated = [line[len("2026-11-26 12:00:00 ") :] for line in out.splitlines() if re.match(TIME, line)]
    assert dated[:2] == ["getting ready: runs/digits/...", f"fedavg: 4 clients, 3 rounds, 1 process -> {run}"]
    assert re.fullmatch(r"round 3/3  train \d\.\d{4}  test \d\.\d{4}  \d+\.\d\d%  \d\.\d{3} s/round", dated[-1])
    assert "\x1b" not in out


@pytest.mark.slow
def test_the_first_line_of_a_run_comes_before_torch_is_imported(call, fresh, monkeypatch, capsys):
    """A job's log shows within a second or two what was started and where."""

    def loads(*arguments):
        printed.append(capsys.readouterr().out)
        raise SystemExit(3)

    printed = []
    monkeypatch.setattr("raylfl.config.load.resolve", loads)  # imports the classes of the config
    assert call(*RUN, "logging.id=a")[0] != 0
    assert re.fullmatch(rf"{TIME} getting ready: runs/digits/a\n", printed[0])
    code = "import sys, raylfl.config.load as load, raylfl.python.api, raylfl.python.console\n"
    code += "load.typed_groups(load.compose('digits'))\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_run_is_started_continued_and_found_finished_by_one_command_which_refuses_another_run(
    call, fresh, monkeypatch
):
    def killed(phase, round_number):
        if round_number == 2:
            raise SystemExit(9)

    once = [*RUN, "logging.id=a", "checkpoint.every=1", "--or-resume"]
    folder = fresh / "runs/digits/a"
    with monkeypatch.context() as patch:
        patch.setattr("raylfl.runtime.session.kill_point", lambda: killed)
        assert call(*once)[0] != 0
    assert not (folder / "summary.json").exists()
    code, out, err = call(*once)
    assert (code, err) == (0, "")
    assert re.search(r"resumed at round [12]", out)
    finished = (folder / "summary.json").read_bytes()
    code, out, err = call(*once)
    assert (code, err) == (0, "")
    assert out.endswith("finished runs/digits/a: all 3 rounds are done; a larger value of rounds continues it\n")
    assert (folder / "summary.json").read_bytes() == finished
    for change, words in (
        ("local.lr=0.5", "these would change: local.lr: 0.05 -> 0.5"),
        ("rounds=2", "rounds=2, but must be >= 3"),
        ("logging.id=null", "--or-resume needs the name of the run to continue: logging.id=first"),
    ):
        files = {path: path.read_bytes() for path in folder.glob("*.json*")}
        code, _, err = call(*once, change)
        assert code == 2
        assert words in err
        assert files == {path: path.read_bytes() for path in files}
    code, out, err = call(*once, "rounds=5")
    assert (code, err) == (0, "")
    assert "resumed at round 3" in out


def test_a_run_that_ends_early_prints_its_last_round_and_the_reason(call, fresh):
    stop = "rounds=20", "stop.metric=cost/local_steps", "stop.target=100", "stop.mode=max"
    once = [*RUN, *stop, "logging.id=a", "--or-resume"]
    code, out, err = call(*once)
    assert (code, err) == (0, "")
    reason = r"cost/local_steps = \d+ reached stop.target = 100"
    shown = re.search(rf" round (\d+)/20  .*\nstopped  runs/digits/.+ after (\d+) rounds: {reason}$", out, re.MULTILINE)
    assert shown[1] == shown[2]
    code, out, err = call(*once)
    ended = rf"finished runs/digits/a: stopped after {shown[1]} of 20 rounds: {reason}"
    assert re.search(f"{ended}; another stop.target or stop.patience continues it\n$", out)
    assert f"resumed at round {shown[1]}" in call(*once, "stop.target=200")[1]


def test_a_terminal_shows_a_bar(call, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    code, out, _ = call(*RUN)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    assert code == 0
    assert re.search(r"fedavg ━+ 3/3 train \d\.\d{4}  test \d\.\d{4}  \d+\.\d\d% \d\.\d{3} s/round", plain)


def test_the_line_of_a_run_shows_two_metrics_of_a_module_of_ones_own_and_without_a_test_set_the_validation_set():
    usual = {"train/loss": 0.37119, "test/loss": 1.0, "test/accuracy": 0.912, "cohort/sampled": 3}
    assert status_line(usual) == "train 0.3712  test 1.0000  91.20%"
    own = {"test/f1": 0.5, "val/f1": 0.1, "test/auroc": 0.25, "test/other": 1.0}
    assert status_line(usual | own) == "train 0.3712  test 1.0000  91.20%  f1 0.5000  auroc 0.2500"
    row = {"val/f1": 0.1, "train/loss": 0.5, "val/loss": 2.0, "val/accuracy": 0.25, "global/distance": 0.01}
    assert status_line(row) == "train 0.5000  val 2.0000  25.00%  f1 0.1000  distance 1.00e-02"
    assert (status_line({"val/f1": 0.5}), status_line({})) == ("val f1 0.5000", "")


def test_resume_continues_and_rounds_may_be_raised(call, fresh):
    call(*RUN, "logging.id=mine")
    code, out, err = call("resume", "runs/digits/mine", "rounds=5")
    assert (code, err) == (0, "")
    assert "resumed at round 3" in out
    assert re.findall(rf"^{TIME} round (\S+)", out, re.MULTILINE)[-1] == "5/5"
    assert not re.search(rf"^{TIME} round [123]/", out, re.MULTILINE)
    assert [json.loads(line)["round"] for line in lines_of("runs/digits/mine/metrics.jsonl")] == [0, 1, 2, 3, 4]


def test_compare_makes_what_is_missing_and_ends_with_one_page_and_a_table(call, fresh, undrawn, one_core):
    fixed = ("compare", "digits", *SMALL, "rounds=1", "-o", "both", "-a")
    code, out, err = call(*fixed, "fedavg,focus")
    assert (code, err) == (0, "")
    assert "runs     2 to do, 0 found in runs/digits\n" in out
    assert re.search(r"^ ?FOCUS +1 +1 ", out, re.MULTILINE)
    assert re.search(r"^report +both/index.html$", out, re.MULTILINE)
    assert (fresh / "both/index.html").is_file()
    assert (fresh / "both/report.png").is_file()
    stamps = {path: path.stat().st_mtime_ns for path in (fresh / "runs").glob("digits/*/final.pt")}
    assert len(stamps) == 2
    code, out, err = call(*fixed, "fedavg,sfl,focus")
    assert (code, err) == (0, "")
    assert out.startswith("runs     1 to do, 2 found in runs/digits\n")
    assert len(re.findall(r"^ +1/1 done after \d+ s: sfl, seed 0  train .*%$", out, re.MULTILINE)) == 1
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps
    assert re.search(r"^ ?FOCUS +1 +1 ", out, re.MULTILINE)


def test_seeds_of_a_comparison_are_runs_of_their_own_paired_in_the_table_under_a_common_id(
    call, fresh, undrawn, one_core
):
    fixed = ("compare", "digits", *SMALL, "rounds=1", "logging.id=x", "--seeds", "3,1", "-a")
    code, out, err = call(*fixed, "fedavg,focus")
    assert (code, err) == (0, "")
    names = {f"x-{name}-s{seed}" for name in ("fedavg", "focus") for seed in (3, 1)}
    assert {path.name for path in (fresh / "runs/digits").glob("x-*")} == names
    assert re.search(r"^ ?FOCUS +2 +1 ", out, re.MULTILINE)
    assert re.search(r"^ ?(FOCUS − FedAvg|FedAvg − FOCUS) .* 2 ", out, re.MULTILINE)
    code, out, err = call(*fixed, "sfl,focus", "local.lr=0.7")
    assert (code, out) == (2, "")
    assert "logging.id=x-focus-s" in err
    assert {path.name for path in (fresh / "runs/digits").glob("x-*")} == names


def test_a_comparison_whose_runs_diverge_writes_its_report_and_fails_each_time(call, fresh, undrawn, one_core):
    for todo, found in ((2, 0), (0, 2)):
        page = fresh / f"page-{found}"
        code, out, err = call("compare", "digits", *SMALL, "local.lr=1e20", "-o", str(page), "-a", "fedavg,focus")
        assert code == 1
        assert f"runs     {todo} to do, {found} found in runs/digits\n" in out
        assert re.search(r"^ ?FedAvg .*\n ?FOCUS ", out, re.MULTILINE)
        assert (page / "index.html").is_file()
        assert err.startswith("raylfl: 2 of 2 runs diverged: fedavg, seed 0: client ")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--seeds", "1,x"), "--seeds '1,x' is no list of whole numbers"),
        (("--seeds", "1,2", "seed=3"), "seed=3 and seeds=[1, 2]: give one of them"),
        (("--seeds", "1,1"), "algorithm fedavg with seed 1 is there twice"),
        (("--seeds", "-1"), "seed=-1"),
    ],
)
def test_impossible_seeds_are_refused(call, fresh, options, reason):
    code, out, err = call("compare", "digits", "-a", "fedavg", *SMALL, *options)
    assert (code, out) == (2, "")
    assert reason in err
    assert not (fresh / "runs").exists()


def test_report_takes_folders_of_runs_and_a_main_metric_and_names_the_nearest_one(call, fresh, undrawn):
    for name in ("fedavg", "focus"):
        write_run(fresh / "runs" / name, rows_of([0.3, 0.6]), {"algorithm.name": name})
    code, out, err = call("report", "runs", "-o", "page", "--target", "0.5", "--last", "2")
    assert (code, err) == (0, "")
    assert "last 2" in out
    assert "FOCUS" in out
    assert (fresh / "page/index.html").is_file()
    code, out, err = call("report", "runs", "-o", "page", "--metric", "cohort/sampled")
    assert code == 2
    assert "state it: --better max (or min), and in the config of later runs metrics={cohort/sampled: max}" in err
    code, out, err = call("report", "runs", "-o", "page", "--metric", "cohort/sampled", "--better", "max")
    assert (code, err) == (0, "")
    assert "clients sampled" in out.splitlines()[0]
    code, out, err = call("report", "runs", "-o", "page", "--metric", "cohort/sampeld")
    assert code == 2
    assert err.endswith("(did you mean cohort/sampled?)\n")


def test_partition_writes_what_a_run_would_own(call, fresh):
    code, out, err = call("partition", "digits", "num_clients=5", "partition.name=exdir", "-o", "p")
    assert (code, err) == (0, "")
    owners = json.loads((fresh / "p/partition.json").read_text())
    assert sorted(index for own in owners.values() for index in own) == list(range(1438))
    assert (fresh / "p/partition.png").stat().st_size > 1000
    counts = {line.split()[0]: line.split()[1] for line in out.splitlines()[1:6]}
    assert counts == {client: str(len(own)) for client, own in owners.items()}
    call(*RUN, "num_clients=5", "partition.name=exdir", "logging.id=mine", "rounds=1")
    assert json.loads((fresh / "runs/digits/mine/partition.json").read_text()) == owners


def test_trace_draws_the_rounds_of_a_config(call, fresh):
    """Those of a run: tests/report/test_trace_rows.py."""
    world = ["participation.name=markov", "participation.p_on=0.3", "participation.p_off=0.4", "link=bernoulli"]
    code, out, err = call("trace", "digits", *SMALL, *world, "-o", "t")
    assert (code, err) == (0, "")
    assert out.startswith("3 rounds, ")
    assert (fresh / "t/participation.png").stat().st_size > 1000
    assert len(lines_of("t/participation.jsonl")) == 3


def test_topology_prints_the_numbers_of_a_graph_and_draws_it(call, fresh):
    code, out, err = call("topology", "graphs", "topology=torus", "algorithm=dsgd", "-o", "t")
    assert (code, err) == (0, "")
    numbers = dict(zip(*(line.split() for line in out.splitlines()[:2]), strict=True))
    assert [numbers[k] for k in ("nodes", "edges", "degree", "diameter")] == ["16", "32", "4", "4"]
    assert float(numbers["gap"]) == 0.4  # 1 - (1 + 2 + 2 cos(2 pi / 4)) / 5
    assert Path("t/topology.png").stat().st_size > 10_000


def test_list_has_a_line_for_each_of_every_kind(call):
    assert [line for line in call("list")[1].splitlines() if line in KINDS] == list(KINDS)
    for kind in KINDS:
        code, out, err = call("list", kind)
        assert (code, err) == (0, "")
        names = config_names(FOLDERS[kind]) if kind in FOLDERS else REGISTERED[kind].names()
        assert [line.split()[0] for line in out.splitlines()] == names
        assert all(len(line.split()) > 1 and line == line.rstrip() for line in out.splitlines())


def test_runs_shows_what_is_finished_and_what_is_not(call, fresh):
    for name in ("done", "cut"):
        write_run(fresh / "runs/digits" / name, rows_of([0.3]), {"rounds": 1}, finished=name == "done")
    code, out, _ = call("runs")
    assert code == 0
    heads = ["run", "algorithm", "state", "rounds", "train/loss", "test/loss", "test/accuracy"]
    assert out.splitlines()[0].split() == heads
    assert re.search(r"^runs/digits/done +fedavg +finished +1/1 +\d", out, re.MULTILINE)
    assert re.search(r"^runs/digits/cut +fedavg +stopped", out, re.MULTILINE)
    held = RunDirectory(fresh / "runs/digits/cut").open()
    assert re.search(r"^runs/digits/cut +fedavg +running", call("runs")[1], re.MULTILINE)
    held.close()
    journal = Journal(fresh / "runs/digits")
    journal.plan(Trial("000-fedavg", 0, [0], {}, ["cut"]))
    journal.end("000-fedavg", "failed", "too far")
    assert re.search(r"^runs/digits/cut +fedavg +failed", call("runs")[1], re.MULTILINE)
    (fresh / "runs/digits/cut/diverged.txt").touch()
    assert re.search(r"^runs/digits/cut +fedavg +diverged", call("runs")[1], re.MULTILINE)


def test_the_printed_config_is_a_config(call):
    code, out, _ = call(
        "run", "digits", "algorithm.name=focus", "--print-config", "rounds=7"
    )  # before and after options
    assert code == 0
    printed = yaml.safe_load(out)
    assert (
        load_config(printed).resolved == printed == load_config("digits", ["algorithm.name=focus", "rounds=7"]).resolved
    )


def test_help_names_the_keys(call):
    code, out, _ = call("run", "--help")
    assert code == 0
    for words in ("num_clients", "lr_schedule", "micro_cohort", "global", "random_clients", "participation", "loggers"):
        assert words in out
    assert max(map(len, out.splitlines())) <= 120
