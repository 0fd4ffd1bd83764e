"""The command line: parses commands, calls them, and converts errors to exit codes.

Exit codes: 0 done, 2 bad usage or config, 1 any other error.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import raylfl
from raylfl.config.find import FOLDERS, working_directory
from raylfl.errors import BadConfig, RaylflError
from raylfl.extras import EXTRAS, MissingExtra, missing_package, ours, require
from raylfl.startup import process

REGISTERED = ("algorithms", "partitions", "participation", "links", "models", "data", "loggers")
KINDS = (*REGISTERED, *FOLDERS)  # what `raylfl list` lists
REPORT = EXTRAS["report"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command; errors become one or two lines on stderr (`--debug` shows the traceback)."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    unknown = [a for a in rest if a.startswith("-")]
    if unknown or (rest and not hasattr(args, "overrides")):
        parser.error(f"unrecognised: {' '.join(unknown or rest)}")
    if hasattr(args, "overrides"):
        args.overrides = [*args.overrides, *rest]  # overrides after an option
    process.set_up()
    try:
        here = str(working_directory())
        if here not in sys.path:  # as with `python -m raylfl`: class_path=mine.Net finds ./mine.py
            sys.path.insert(0, here)
        return args.call(args) or 0
    except BadConfig as error:
        return _fail(args, error, 2)
    except KeyboardInterrupt as error:
        return _fail(args, error, 1, "interrupted")
    except BrokenPipeError:
        return 1
    except RaylflError as error:
        return _fail(args, error, 1, str(error).partition("\n")[0])
    except ModuleNotFoundError as error:
        if ours(error.name or ""):
            return _fail(args, RaylflError(missing_package(str(error.name), f"this Python, {sys.executable},")), 1)
        return _fail(args, error, 1, f"ModuleNotFoundError: {error}")
    except Exception as error:
        return _fail(args, error, 1, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")


def _fail(args: argparse.Namespace, error: BaseException, code: int, text: str | None = None) -> int:
    if getattr(args, "debug", False):
        import traceback

        traceback.print_exception(error)
        return code
    first, *rest = (text or str(error) or type(error).__name__).splitlines()
    rest += getattr(error, "__notes__", [])
    if code == 1 and not isinstance(error, (RaylflError, KeyboardInterrupt)):
        rest.append("this is unexpected; --debug shows where it happened")
    for line in [first, "; ".join(rest)] if rest else [first]:  # two lines at most
        print(f"raylfl: {line}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that reports bad usage in two lines; `--help` of a command with a config lists its keys."""

    takes_config = False

    def format_help(self) -> str:
        if self.takes_config:
            from raylfl.config.schema import keys_text  # imported late: other commands do not need it

            self.epilog, self.formatter_class = keys_text(), argparse.RawDescriptionHelpFormatter
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"raylfl: {message}\nraylfl: `{self.prog} --help` shows the usage\n")


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)  # before or after the command
    shared.add_argument("--debug", action="store_true", default=argparse.SUPPRESS, help="show tracebacks")
    about = "Federated optimisation side by side, on PyTorch Lightning and Ray."
    parser = _Parser(prog="raylfl", description=about, parents=[shared])
    parser.add_argument("--version", action="version", version=f"raylfl {raylfl.__version__}")
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, call: Callable[[argparse.Namespace], int | None], text: str) -> Any:
        sub = commands.add_parser(name, parents=[shared], help=text, description=text)
        sub.set_defaults(call=call)
        return sub

    def with_config(sub: Any) -> Any:
        sub.takes_config = True
        sub.add_argument("config", metavar="CONFIG", help="a path, or the name of a file under conf/")
        sub.add_argument(
            "overrides", nargs="*", default=[], metavar="key=value", help="dotted keys: algorithm.gamma=0.5"
        )
        return sub

    sub = with_config(command("run", _run, "one federated run"))
    sub.add_argument("--print-config", action="store_true", help="print the resolved config and stop")
    sub = with_config(command("compare", _compare, "the same world for several algorithms, then one report"))
    sub.add_argument(
        "-a", "--algorithms", required=True, metavar="A,B,...", help="names of algorithms, compared on one config"
    )
    sub.add_argument("-o", "--out", metavar="DIR", help="where the report goes (default: beside the runs)")
    sub = command("resume", _resume, "continue a run from its newest intact checkpoint")
    sub.add_argument("run_dir", metavar="RUN_DIR")
    sub.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="rounds may be raised")
    sub = command("sweep", _sweep, "Ray Tune over any config keys; a table of trials, then a report")
    sub.add_argument("sweep", nargs="?", metavar="SWEEP", help="a path, or the name of a file under conf/sweep/")
    sub.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="keys of the sweep or of its config")
    sub.add_argument("--resume", metavar="DIR", help="continue the sweep in this directory")
    sub = command("report", _report, "curves, tables and a page from runs; seeds of one setting are pooled")
    sub.add_argument("paths", nargs="+", metavar="RUN_OR_SWEEP_DIR")
    sub.add_argument("-o", "--out", metavar="DIR", default="report")
    sub.add_argument("--target", type=float, help="accuracy (or distance) for `rounds to target`")
    sub.add_argument("--last", type=int, help="rounds in the last-k mean")
    sub.add_argument("--wandb", metavar="ENTITY/PROJECT", help="make a report at wandb instead")
    sub = command(
        "reproduce", _reproduce, "a paper's figure or table: runs it, prints our number beside the published one"
    )
    sub.add_argument(
        "overrides", nargs="*", default=[], metavar="NAME", help="focus/fig4, ...; key=value is for every run"
    )
    sub.add_argument("--list", action="store_true", help="show the names (as without any)")
    sub.add_argument(
        "--scale", choices=("smoke", "paper"), default="smoke", help="of image classification (default: smoke)"
    )
    sub.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="key=value",
        help="cells of an experiment: task=mnist-*, steps=5,20 (SFL: task, classes, steps, method, lr, seed)",
    )
    sub.add_argument("--processes", type=_positive, metavar="N", help="runs at a time without Ray (default: one a CPU)")
    sub.add_argument("--estimate", action="store_true", help="say how long it would take here, from short runs")
    sub = command("publish", _publish, "finished runs of `reproduce` into the ledger in results/, and its pages")
    sub.add_argument("targets", nargs="*", metavar="RUN_OR_EXPERIMENT", help="none: only write the pages anew")
    sub.add_argument("--to", metavar="NAME", help="the experiment of a run directory")
    sub.add_argument("--results", default="results", metavar="DIR", help="the ledger (default: results)")
    sub.add_argument("--docs", default="docs", metavar="DIR", help="the pages (default: docs)")
    sub = with_config(command("partition", _partition, "show a partition without training"))
    sub.add_argument("-o", "--out", metavar="DIR", default=".", help="for partition.json and partition.png")
    sub = with_config(command("trace", _trace, "draw the participation of a config without training"))
    sub.add_argument("-o", "--out", metavar="DIR", default=".", help="for participation.jsonl and .png")
    sub = with_config(command("profile", _profile, "time the phases of a round and the forms of the gradient oracle"))
    sub.add_argument("--rounds", type=_positive, default=9, metavar="N", help="rounds timed of each form (default: 9)")
    sub = with_config(command("theory", _theory, "constants of a problem, and what the papers' theorems say of a run"))
    sub.add_argument("--json", action="store_true", help="print plain values instead of tables")
    sub = command("list", _list, "what there is, plug-ins and classes of one's own included, one line each")
    what = f"{', '.join(KINDS)}; or a module or class of your own (mine, mine.FedCM), with its options"
    sub.add_argument("what", nargs="*", metavar="KIND", help=what)
    sub = command("new", _new, "write a component of your own: its file, yaml and test, which pass as they are")
    sub.add_argument("kind", metavar="KIND", help="algorithm, partition, participation, link, model or data")
    sub.add_argument("name", metavar="NAME", help="of the class: FedCM makes fedcm.py, fedcm.yaml, test_fedcm.py")
    sub.add_argument("-o", "--out", metavar="DIR", default=".", help="where the files go (default: here)")
    command("doctor", _doctor, "what is installed and found here; exit code 1 if `raylfl run digits` lacks anything")
    sub = command(
        "completion", _completion, "a script that completes commands, configs and keys: put it into ~/.bashrc"
    )
    sub.add_argument("shell", metavar="SHELL", help='bash or zsh: eval "$(raylfl completion bash)"')
    command("schema", _schema, "the JSON schema of a config, for editors that check and complete yaml")
    sub = command("runs", _runs, "runs with their state and key metrics")
    sub.add_argument("paths", nargs="*", metavar="DIR", help="default: runs")
    return parser


def _run(args: argparse.Namespace) -> int | None:
    if args.print_config:
        import yaml

        from raylfl.config.load import load_config

        config = load_config(args.config, args.overrides)
        from raylfl.experiment import check_without_data

        check_without_data(config)
        print(yaml.safe_dump(config.resolved, sort_keys=False), end="")
        return None
    from raylfl import api
    from raylfl.console import Watcher

    with Watcher() as watch:
        result = api.run(args.config, args.overrides, watch)
    _finished(result)
    return None


def _resume(args: argparse.Namespace) -> None:
    from raylfl import api
    from raylfl.console import Watcher

    with Watcher() as watch:
        result = api.resume(args.run_dir, args.overrides, watch)
    _finished(result)


def _finished(result: Any) -> None:
    from raylfl.console import say, shown, working
    from raylfl.runtime.records.summary import step_line

    if result.config.logging.report and _can_draw(say):
        from raylfl.report.page import write_report

        with working("drawing the report"):
            page = write_report([result.run_dir], result.run_dir / "report")
        say(f"report   {shown(page)}")
    if "local_steps" in result.summary:
        say(f"steps    {step_line(result.summary['local_steps'])}")
    say(f"run      {shown(result.run_dir)}")


def _can_draw(say: Callable[[str], None]) -> bool:
    """Whether the libraries of reports are installed; if not, one line says how to get them."""
    try:
        require(*REPORT, what="the report (logging.report)")
    except MissingExtra as error:
        say(str(error))
        return False
    return True


def _compare(args: argparse.Namespace) -> int | None:
    require(*REPORT, what="the report of a comparison", instead="`raylfl run` for each algorithm")
    from raylfl import api
    from raylfl.console import Watcher

    names = [name for name in args.algorithms.split(",") if name]
    if not names:
        raise BadConfig(f"--algorithms '{args.algorithms}' names none; write focus,fedavg,sfl, for example")
    with Watcher() as watch:
        results = api.compare(args.config, args.overrides, names, watch)
    folders = [result.run_dir for result in results]
    _write_report(folders, Path(args.out) if args.out else folders[0].parent / f"report-{folders[0].name}")
    return None


def _write_report(paths: Sequence[Path], out: Path, **options: Any) -> None:
    """Writes the page and its files, and prints the summary table."""
    from raylfl.console import print_table, say, shown, working
    from raylfl.report.page import summary_table, write_report
    from raylfl.report.render import to_rich

    with working("drawing the report"):
        page = write_report(paths, out, **options)
        table = summary_table(paths, **options)
    shown_table = to_rich(table)
    shown_table.box = None
    print_table(shown_table)
    say(f"report   {shown(page)}")


def _sweep(args: argparse.Namespace) -> int:
    require("ray", *EXTRAS["tune"], what="raylfl sweep")
    require(*REPORT, what="the report of a sweep")
    from raylfl.console import say
    from raylfl.tune import show, sweep

    if args.resume:
        overrides = [args.sweep, *args.overrides] if args.sweep else args.overrides
        return show.finish(sweep.resume(args.resume, overrides, say), say)
    if not args.sweep:
        raise BadConfig("sweep needs a file, or --resume DIR")
    return show.finish(sweep.sweep(args.sweep, args.overrides, say), say)


def _report(args: argparse.Namespace) -> None:
    paths = [Path(p) for p in args.paths]
    if args.wandb:
        from raylfl.console import say
        from raylfl.report.wandb_report import publish

        say(f"report   {publish(paths, args.wandb)}")
        return
    require(*REPORT, what="raylfl report")
    _write_report(paths, Path(args.out), target=args.target, last=args.last)


def _reproduce(args: argparse.Namespace) -> None:
    require(*REPORT, what="raylfl reproduce")
    from raylfl.reproduce.command import list_experiments, reproduce

    names = [argument for argument in args.overrides if "=" not in argument]
    if args.list or not names:
        return list_experiments()
    overrides = [argument for argument in args.overrides if "=" in argument]
    return reproduce(names, args.scale, overrides, args.only, args.processes, args.estimate)


def _publish(args: argparse.Namespace) -> None:
    require(*REPORT, what="raylfl publish")
    from raylfl.reproduce.publish import publish

    publish(args.targets, args.to, Path(args.results), Path(args.docs))


def _partition(args: argparse.Namespace) -> None:
    from raylfl.config.load import load_config

    config = load_config(args.config, args.overrides)  # first: what follows imports torch
    require(*REPORT, what="the figure of raylfl partition")
    from raylfl.console import rows_table, say
    from raylfl.data_source import load_data
    from raylfl.experiment import make_split, samples_of
    from raylfl.heterogeneity.partition.file import save
    from raylfl.heterogeneity.partition.stats import class_counts, summary, table
    from raylfl.report.partition_plot import figure

    source = load_data(config)
    split, samples = make_split(config, source), samples_of(source)
    rows_table(table(split, samples))
    rows_table(summary(split, samples))
    if split.dropped:
        say(f"{split.dropped} samples belong to no client: this partition drops a remainder")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    save(out / "partition.json", split.clients)
    say(f"written  {out / 'partition.json'}")
    if samples.labels is not None:
        title = f"{config.resolved['partition']['name']}, {len(split.clients)} clients"
        figure(class_counts(split, samples), samples.classes.tolist(), title).savefig(out / "partition.png")
        say(f"written  {out / 'partition.png'}")


def _trace(args: argparse.Namespace) -> None:
    from raylfl.config.load import load_config

    config = load_config(args.config, args.overrides)
    require(*REPORT, what="the figure of raylfl trace")
    from raylfl.console import participation_line, say
    from raylfl.experiment import assemble
    from raylfl.heterogeneity.trace import read_trace
    from raylfl.report.trace import draw_trace

    experiment = assemble(config)
    written = draw_trace(experiment, Path(args.out))
    say(participation_line(read_trace(written[0]), experiment.world.count))
    for path in written:
        say(f"written  {path}")


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}, but must be a whole number >= 1")
    return int(text)


def _profile(args: argparse.Namespace) -> None:
    from raylfl.api import checked
    from raylfl.config.load import load_config

    free = ["runtime.backend=local", "eval.every=0", "runtime.vectorize=auto", "runtime.layout=auto"]
    experiment = checked(load_config(args.config, [*args.overrides, *free]))
    from raylfl.console import profile_tables, working
    from raylfl.runtime.profile import profile

    with working("timing rounds"):
        timings, kernels, replayed = profile(experiment, args.rounds)
    profile_tables(timings, kernels, replayed)


def _theory(args: argparse.Namespace) -> None:
    from raylfl.config.load import load_config

    config = load_config(args.config, args.overrides)
    from raylfl.api import checked
    from raylfl.console import theory_tables, working
    from raylfl.theory.summary import theory_of

    with working("computing the constants"):
        theory = theory_of(checked(config))
    if args.json:
        import json

        print(json.dumps(theory.as_dict(), indent=1))
        return
    theory_tables(theory)


def _list(args: argparse.Namespace) -> None:
    from raylfl.listing import list_kind, list_own

    for what in args.what or KINDS:
        if what in KINDS:
            list_kind(what, with_title=len(args.what) != 1)
        else:
            list_own(what, KINDS)


def _new(args: argparse.Namespace) -> None:
    from raylfl.new import KINDS as KNOWN
    from raylfl.new import new

    if args.kind not in KNOWN:
        raise BadConfig(f"new {args.kind}: there are templates of {', '.join(KNOWN)}")
    for path in new(args.kind, args.name, Path(args.out)):
        print(f"written  {path}")
    print(f"try      pytest {path}")


def _doctor(args: argparse.Namespace) -> int:
    from raylfl.doctor import findings

    missing = []
    for finding in findings():
        print(finding)
        missing += [finding.subject] * (finding.state == "missing")
    print(
        "raylfl run digits " + (f"needs what is missing: {', '.join(missing)}" if missing else "has all that it needs")
    )
    return 1 if missing else 0


def _completion(args: argparse.Namespace) -> None:
    from raylfl.completion import SHELLS, script

    if args.shell not in SHELLS:
        raise BadConfig(f"completion {args.shell}: there are scripts for {', '.join(SHELLS)}")
    print(script(args.shell, _parser()))


def _schema(args: argparse.Namespace) -> None:
    from raylfl.config import json_schema

    print(json_schema.text())


def _runs(args: argparse.Namespace) -> None:
    from raylfl.console import runs_table
    from raylfl.tune.journal import ends

    runs_table([Path(p) for p in args.paths or ["runs"]], ends)


if __name__ == "__main__":
    sys.exit(main())
