"""The command line: parses arguments, calls the command, and converts errors to exit codes.

Exit codes: 0 done, 2 bad usage or config, 1 any other error.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import raylfl
from raylfl.cli import commands
from raylfl.components.extras import missing_package, ours
from raylfl.config.find import working_directory
from raylfl.errors import BadConfig, RaylflError, exits_as_errors, headline, is_noted, note_own_code, visible
from raylfl.startup import process

Command = Callable[[argparse.Namespace], int | None]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command given by these arguments (None: the arguments of the process) and returns its exit code.

    Errors are printed as one or two lines on stderr; with `--debug`, as a traceback.
    """
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    unknown = [a for a in rest if a.startswith("-")]
    if unknown or (rest and not hasattr(args, "overrides")):
        key, _, value = unknown[0].lstrip("-").partition("=") if unknown else ("", "", "")
        hint = f"; config keys have no dashes: {key}={value or '...'}" if hasattr(args, "overrides") and key else ""
        parser.error(f"unrecognised: {' '.join(unknown or rest)}{hint}")
    if hasattr(args, "overrides"):
        args.overrides = [*args.overrides, *rest]  # overrides after an option
    process.set_up()
    try:
        here = str(working_directory())
        if here not in sys.path:  # as with `python -m raylfl`: class_path=mine.Net finds ./mine.py
            sys.path.insert(0, here)
        with exits_as_errors():
            return args.call(args) or 0
    except BadConfig as error:
        return _fail(args, error, 2)
    except KeyboardInterrupt as error:
        return _fail(args, error, 1, "interrupted")
    except BrokenPipeError:
        return 1
    except RaylflError as error:
        return _fail(args, error, 1, headline(error))
    except ModuleNotFoundError as error:
        if ours(error.name or ""):
            return _fail(args, RaylflError(missing_package(str(error.name), f"this Python, {sys.executable},")), 1)
        return _fail(args, error, 1, f"ModuleNotFoundError: {error}")
    except Exception as error:
        note_own_code(error)
        return _fail(args, error, 1, f"{type(error).__name__}: {headline(error)}")


def _fail(args: argparse.Namespace, error: BaseException, code: int, text: str | None = None) -> int:
    if getattr(args, "debug", False):
        import traceback

        traceback.print_exception(error)
        return code
    first, *rest = (text or str(error) or type(error).__name__).splitlines()
    rest += getattr(error, "__notes__", [])
    if code == 1 and not isinstance(error, (RaylflError, KeyboardInterrupt)):
        noted = is_noted(error)
        rest.append("--debug shows the traceback" if noted else "this is unexpected; --debug shows where it happened")
    for line in [first, "; ".join(rest)] if rest else [first]:  # two lines at most
        print(f"raylfl: {visible(line)}", file=sys.stderr)
    return code


class _Parser(argparse.ArgumentParser):
    """A parser that reports bad usage in two lines; for commands with a config, `--help` lists the config's keys."""

    takes_config = False

    def format_help(self) -> str:
        if self.takes_config:
            from raylfl.config.schema import keys_text  # imported here, because other commands do not need it

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
    subparsers: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(call: Command, text: str, config: bool = False, name: str | None = None) -> Any:
        sub = subparsers.add_parser(name or call.__name__, parents=[shared], help=text, description=text)
        sub.set_defaults(call=call)
        if config:
            sub.takes_config = True
            sub.add_argument("config", metavar="CONFIG", help="a path, or the name of a file under conf/")
            overrides(sub, "dotted keys: algorithm.gamma=0.5")
        return sub

    def overrides(sub: Any, text: str, metavar: str = "key=value") -> None:
        sub.add_argument("overrides", nargs="*", default=[], metavar=metavar, help=text)

    def flag(sub: Any, name: str, text: str) -> None:
        sub.add_argument(name, action="store_true", help=text)

    def where(sub: Any) -> None:
        text = "only runs with this config value or newest metric, also with !=, <, <=, >, >= (may be repeated)"
        sub.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help=text)

    def out(sub: Any, text: str | None, default: str | None = ".") -> None:
        sub.add_argument("-o", "--out", metavar="DIR", default=default, help=text)

    def jobs(sub: Any) -> None:
        text = "runs at the same time, each in a process (default: as many as CPUs and GPUs have room for)"
        sub.add_argument("--jobs", type=_positive, metavar="N", help=text)

    def take_over(sub: Any) -> None:
        flag(sub, "--take-over", "take a URL from the machine that was killed, or lost, as it worked there")

    sub = command(commands.run, "execute one federated run", config=True)
    flag(sub, "--print-config", "print the resolved config and stop")
    flag(sub, "--or-resume", "if the run with this logging.id exists, continue it")
    sub = command(commands.compare, "run several algorithms on one config, then write a report", config=True)
    text = "names of algorithms, compared on one config"
    sub.add_argument("-a", "--algorithms", required=True, metavar="A,B,...", help=text)
    sub.add_argument("--seeds", metavar="S,T,...", help="run each algorithm with each of these seeds")
    jobs(sub)
    out(sub, "where the report goes (default: beside the runs)", default=None)
    sub = command(commands.resume, "continue a run from its newest intact checkpoint")
    sub.add_argument("run_dir", metavar="RUN_DIR", help="a run's directory, or its URL")
    overrides(sub, "rounds may be raised")
    flag(sub, "--trust", "load objects.pkl, and the classes that a run from elsewhere names: executes code")
    take_over(sub)
    sub = command(commands.sweep, "search over config keys with Ray Tune; writes a table of trials and a report")
    sub.add_argument("sweep", nargs="?", metavar="SWEEP", help="a path, or the name of a file under conf/sweep/")
    overrides(sub, "keys of the sweep or of its config")
    text = "continue the sweep in this directory, or at this URL, without its file"
    sub.add_argument("--resume", metavar="DIR", help=text)
    take_over(sub)
    flag(sub, "--trust", "import the classes that a sweep from elsewhere names: executes code")
    sub = command(commands.report, "write curves, tables and a page about runs; seeds of one setting are pooled")
    sub.add_argument("paths", nargs="+", metavar="RUN_OR_SWEEP_DIR", help="directories or URLs")
    where(sub)
    out(sub, None, default="report")
    sub.add_argument("--metric", help="the main metric, such as test/f1 (default: accuracy, distance or loss)")
    sub.add_argument("--better", choices=("max", "min"), help="the better direction of the main metric, if not known")
    sub.add_argument(
        "--target", type=float, help="value of the main metric for `rounds to target`; accuracies are fractions: 0.95"
    )
    text = "columns of the summary table, in order: setting, seeds, length, last, final, best, rounds, floats, ..."
    sub.add_argument("--columns", default="", metavar="A,B,...", help=text)
    sub.add_argument("--last", type=int, help="means over the last LAST rounds; 0: each run's best round")
    flag(sub, "--theory", "theorems' bounds, rates and limits as lines beside curves")
    sub.add_argument("--wandb", metavar="ENTITY/PROJECT", help="make a report at wandb instead")
    sub = command(
        commands.reproduce, "reproduce a paper's figure or table; prints our numbers beside the published ones"
    )
    overrides(sub, "focus/fig4, ...; key=value applies to every run", metavar="NAME")
    flag(sub, "--list", "list all names (also without NAME)")
    sub.add_argument("--scale", choices=("smoke", "paper"), help="scale of image classification (default: smoke)")
    text = "run only these cells: task=mnist-*, steps=5,20 (keys of SFL: task, classes, steps, method, lr, seed)"
    sub.add_argument("--only", action="append", default=[], metavar="key=value", help=text)
    jobs(sub)
    flag(sub, "--estimate", "only estimate the duration on this machine, from short runs")
    flag(sub, "--campaign", "make missing runs of all experiments (or NAMEs) at scale paper")
    sub.add_argument("--minutes", type=float, metavar="N", help="... for N minutes (default: 60)")
    sub.add_argument("--take", metavar="FILE", type=Path, help="... and go on with the runs of another campaign's file")
    sub.add_argument("--save", metavar="FILE", type=Path, help="... and write the unpublished runs to a file")
    sub = command(commands.publish, "add finished runs to the ledger in results/, and rewrite its pages")
    text = "experiments of `reproduce`, or with --as directories of runs; none: only regenerate the pages"
    sub.add_argument("targets", nargs="*", metavar="EXPERIMENT_OR_RUNS", help=text)
    text = "the ledger of these runs: an experiment's, or one for a comparison of your own; each machine has a file"
    sub.add_argument("--as", dest="name", metavar="NAME", help=text)
    sub.add_argument("--results", type=Path, metavar="DIR", help="the ledger (default: results in the repository)")
    sub.add_argument("--docs", type=Path, metavar="DIR", help="the pages (default: docs in the repository)")
    sub = command(commands.partition, "show a partition without training", config=True)
    out(sub, "the folder for partition.json and partition.png (default: here)")
    sub = command(commands.trace, "draw the participation of a config without training", config=True)
    out(sub, "the folder for participation.jsonl and .png (default: here)")
    sub = command(commands.topology, "print the properties of a graph, and draw it", config=True)
    out(sub, "the folder for topology.png (default: here)")
    sub = command(commands.profile, "time the phases of a round and the forms of the gradient oracle", config=True)
    text = "rounds measured for each form (default: 9)"
    sub.add_argument("--rounds", type=_positive, default=9, metavar="N", help=text)
    text = "print the constants of a problem and what the papers' theorems state about a run"
    sub = command(commands.theory, text, config=True)
    flag(sub, "--json", "print plain values instead of tables")
    sub = command(commands.list_all, "list components, plug-ins and your own classes, one line each", name="list")
    what = f"{', '.join(commands.KINDS)}; or a module or class of your own (mine, mine.FedCM), with its options"
    sub.add_argument("what", nargs="*", metavar="KIND", help=what)
    text = "write a new component (its file, its yaml and a test that passes), or the files of jobs on a cluster"
    sub = command(commands.new, text)
    sub.add_argument("kind", metavar="KIND", help="algorithm, partition, participation, link, model or data; or job")
    text = "name of the class: FedCM makes fedcm.py, fedcm.yaml, test_fedcm.py; none for job, which makes jobs/"
    sub.add_argument("name", metavar="NAME", nargs="?", help=text)
    out(sub, "where the files go (default: here)")
    command(commands.doctor, "check the installation; exit code 1 if `raylfl run digits` lacks anything")
    text = "print a script that completes commands, configs and keys, for ~/.bashrc"
    sub = command(_completion, text, name="completion")
    sub.add_argument("shell", metavar="SHELL", help='bash or zsh: eval "$(raylfl completion bash)"')
    sub = command(commands.schema, "print the JSON schema of a config, for editors that check and complete yaml")
    flag(sub, "--sweep", "print the schema of a sweep file instead")
    sub = command(commands.runs, "list runs with their state and main metrics")
    sub.add_argument("paths", nargs="*", metavar="DIR", help="directories or URLs (default: runs)")
    where(sub)
    sub = command(commands.diff, "print the config keys and versions in which runs differ")
    sub.add_argument("paths", nargs="+", metavar="RUN_DIR", help="two or more runs, or directories that hold them")
    where(sub)
    return parser


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}, but must be a whole number >= 1")
    return int(text)


def _completion(args: argparse.Namespace) -> None:
    from raylfl.cli.completion import SHELLS, script

    if args.shell not in SHELLS:
        raise BadConfig(f"completion {args.shell}: there are scripts for {', '.join(SHELLS)}")
    print(script(args.shell, _parser()))


if __name__ == "__main__":
    sys.exit(main())
