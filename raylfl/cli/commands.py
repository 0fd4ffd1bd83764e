"""The commands of the command line: functions of the parsed arguments that return an exit code (None for 0).

Imports are inside the functions: a mistake in the arguments is then reported before torch or Ray is imported.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raylfl.components.extras import EXTRAS, MissingExtra, require
from raylfl.config.find import FOLDERS
from raylfl.errors import BadConfig, SomeDiverged
from raylfl.python import console
from raylfl.python.console import say, shown

REGISTERED = ("algorithms", "partitions", "participation", "links", "topologies", "models", "data", "loggers")
KINDS = (*REGISTERED, *FOLDERS)  # the arguments of `raylfl list`
REPORT = EXTRAS["report"]


def _config(args: argparse.Namespace, *more: str, **options: Any) -> Any:
    """The config of a command; its mistakes are reported before torch is imported, which takes seconds."""
    from raylfl.config.load import load_config

    return load_config(args.config, [*args.overrides, *more], **options)


def print_config(args: argparse.Namespace) -> None:
    config = _config(args)
    from raylfl.config.text import dump
    from raylfl.experiment.assemble import check_without_data

    check_without_data(config)
    if config.local.lr_by_theory is not None:
        from raylfl.theory.summary import resolve_rate

        resolve_rate(config)
    print(dump(config.resolved), end="")


def run(args: argparse.Namespace) -> None:
    if args.print_config:
        print_config(args)
        return
    from raylfl.python import api

    def address(groups: Mapping[str, Any], otherwise: str = "") -> str:
        logging = groups["logging"]
        return f"{logging.url or shown(logging.folder)}/{groups['top'].name}/{logging.id or otherwise}"

    with console.Watcher() as watch:

        def begin(groups: Mapping[str, Any]) -> None:  # before torch is imported
            if args.or_resume and groups["logging"].id is None:
                need = "--or-resume needs the name of the run to continue: logging.id=first"
                raise BadConfig(f"logging.id=null, but {need}")
            api.check_runtime(groups)
            watch.prepare(address(groups, "..."))

        config = _config(args, check=begin)
        from raylfl.execution.planned import prepare

        result = (api.run_or_resume if args.or_resume else api.begin)(prepare(config), watch)
    if isinstance(result, str):
        say(f"finished {address(vars(config))}: {result}")
    else:
        _finished(result)


def resume(args: argparse.Namespace) -> None:
    with console.Watcher() as watch:
        watch.prepare(args.run_dir)
        from raylfl.python import api

        result = api.resume(args.run_dir, args.overrides, watch, trust=args.trust, take_over=args.take_over)
    _finished(result)


def _finished(result: Any) -> None:
    from raylfl.runtime.records.mirror import copy_again
    from raylfl.runtime.records.summary import step_line

    _say_stop(result)
    if result.config.logging.report:
        try:
            require(*REPORT, what="the report (logging.report)")
        except MissingExtra as error:
            say(str(error))
        else:
            from raylfl.report.page import write_report

            with console.working("drawing the report"):
                page = write_report([result.run_dir], result.run_dir / "report", theory=result.config.logging.theory)
            say(f"report   {shown(page)}")
    if "local_steps" in result.summary:
        say(f"steps    {step_line(result.summary['local_steps'])}")
    say(f"run      {shown(result.run_dir)}")
    if (url := copy_again(result.run_dir)) is not None:
        say(f"copied   {url}")


def _say_stop(result: Any) -> None:
    if result.stopped_early is not None:
        say(f"stopped  {shown(result.run_dir)} after {len(result.metrics)} rounds: {result.stopped_early}")


def compare(args: argparse.Namespace) -> None:
    require(*REPORT, what="the report of a comparison", instead="`raylfl run` for each algorithm")
    from raylfl.execution.several import compare

    names = [name for name in args.algorithms.split(",") if name]
    if not names:
        raise BadConfig(f"--algorithms '{args.algorithms}' names none; write focus,fedavg,sfl, for example")
    try:
        seeds = [int(seed) for seed in args.seeds.split(",")] if args.seeds is not None else []
    except ValueError:
        raise BadConfig(f"--seeds '{args.seeds}' is no list of whole numbers; write 0,1,2, for example") from None
    diverged = None
    try:
        results = compare(args.config, args.overrides, names, seeds=seeds, progress=True, jobs=args.jobs)
        folders = [result.run_dir for result in results]
    except SomeDiverged as error:
        diverged, results, folders = error, error.results, error.run_dirs
    for result in results:
        _say_stop(result)
    out = Path(args.out) if args.out else folders[0].parent / f"report-{folders[0].name}"
    _write_report(folders, out, theory=any(result.config.logging.theory for result in results))
    if diverged is not None:
        raise diverged


def _write_report(paths: Sequence[Path], out: Path, **choices: Any) -> None:
    """Writes the report of these runs (`raylfl.report.page.content_of`), and prints its main tables."""
    from raylfl.report.page import content_of, shown_tables, write_page
    from raylfl.report.render import to_rich

    with console.working("drawing the report"):
        content = content_of(paths, **choices)
        page, tables = write_page(content, out), shown_tables(content)
    for table in tables:
        shown_table = to_rich(table)
        shown_table.box = None
        console.print_table(shown_table)
    say(f"report   {shown(page)}")


def sweep(args: argparse.Namespace) -> int:
    require(*EXTRAS["tune"], "ray", what="raylfl sweep")  # the extra `tune` has ray
    require(*REPORT, what="the report of a sweep")
    from raylfl.tune import sweep

    if args.resume:
        overrides = [args.sweep, *args.overrides] if args.sweep else args.overrides
        return sweep.finish(sweep.resume(args.resume, overrides, say, args.take_over, args.trust), say)
    if not args.sweep or args.take_over or args.trust:
        raise BadConfig("sweep needs a file, or --resume DIR, to which --take-over and --trust belong")
    return sweep.finish(sweep.sweep(args.sweep, args.overrides, say), say)


def report(args: argparse.Namespace) -> None:
    from raylfl.runtime.records.mirror import local_view

    paths = [local_view(p) for p in args.paths]
    if args.wandb:
        from raylfl.report.wandb_report import publish

        say(f"report   {publish(paths, args.wandb)}")
        return
    require(*REPORT, what="raylfl report")
    choices = {"metric": args.metric, "target": args.target, "last": args.last}
    if len(paths) == 1:
        from raylfl.tune.spec import shown_choices

        try:
            of_sweep = shown_choices(paths[0])
        except BadConfig as error:
            say(f"settings are not ranked as in the sweep: {error}")
        else:
            if args.metric in (None, of_sweep.get("metric")):  # the sweep's target and rounds are of its metric
                choices |= {key: value for key, value in of_sweep.items() if choices[key] is None}
    choices |= {"theory": args.theory, "where": args.where, "columns": [key for key in args.columns.split(",") if key]}
    choices["better"] = args.better
    _write_report(paths, Path(args.out), **choices)


def reproduce(args: argparse.Namespace) -> None:
    require(*REPORT, what="raylfl reproduce")
    from raylfl.config.find import find_checkout

    root = find_checkout("raylfl reproduce")
    from papers.command import list_experiments, reproduce

    names = [argument for argument in args.overrides if "=" not in argument]
    overrides = [argument for argument in args.overrides if "=" in argument]
    if args.campaign:
        from papers.campaign import campaign

        if args.only or args.scale:
            raise BadConfig("--only and --scale: a campaign makes all runs that its experiments lack at scale paper")
        minutes = 60.0 if args.minutes is None else args.minutes
        return campaign(names, minutes, overrides, args.jobs, args.take, args.save, args.estimate, root / "results")
    if args.take or args.save or args.minutes is not None:
        raise BadConfig("--minutes, --take and --save are of a campaign: raylfl reproduce --campaign")
    if args.list or not names:
        return list_experiments()
    return reproduce(names, args.scale or "smoke", overrides, args.only, args.jobs, args.estimate)


def publish(args: argparse.Namespace) -> None:
    require(*REPORT, what="raylfl publish")
    from raylfl.config.find import find_checkout

    root = find_checkout("raylfl publish")
    from papers.publish import publish

    publish(args.targets, args.name, args.results or root / "results", args.docs or root / "docs")


def partition(args: argparse.Namespace) -> None:
    config = _config(args)
    require(*REPORT, what="the figure of raylfl partition")
    from raylfl.experiment.assemble import make_split
    from raylfl.experiment.data_source import load_data
    from raylfl.heterogeneity.partition.given import as_text
    from raylfl.heterogeneity.partition.stats import class_counts, summary, table
    from raylfl.report.partition_plot import figure
    from raylfl.runtime.records.files import atomic_write

    source = load_data(config)
    split, samples = make_split(config, source), source.samples
    natural = config.resolved["partition"]["name"] == "natural"
    names = source.client_names if natural else None
    rows = table(split, samples)
    console.rows_table([{"name": name, **row} for name, row in zip(names, rows, strict=True)] if names else rows)
    console.rows_table(summary(split, samples))
    for line in source.warnings:
        say(f"warning: {line}")
    if split.dropped:
        say(f"{split.dropped} samples belong to no client: this partition drops a remainder")
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "partition.json", as_text(split.clients))
    say(f"written  {out / 'partition.json'}")
    if samples.labels is not None:
        title = f"{config.resolved['partition']['name']}, {len(split.clients)} clients"
        figure(class_counts(split, samples), samples.classes.tolist(), title, names).savefig(out / "partition.png")
        say(f"written  {out / 'partition.png'}")


def trace(args: argparse.Namespace) -> None:
    config = _config(args)
    require(*REPORT, what="the figure of raylfl trace")
    from raylfl.experiment.assemble import assemble
    from raylfl.report.trace import draw_trace
    from raylfl.theory.summary import resolve_rate

    resolve_rate(config)
    experiment = assemble(config)
    summary, written = draw_trace(experiment, Path(args.out))
    say(summary)
    for path in written:
        say(f"written  {path}")


def topology(args: argparse.Namespace) -> None:
    config = _config(args)
    require(*REPORT, what="the figure of raylfl topology")
    from raylfl.core.mixing import Family
    from raylfl.experiment.assemble import assemble
    from raylfl.heterogeneity.topologies.summary import first_mixing, mixing_rate, numbers
    from raylfl.report.topology_plot import MOST, topology_figure

    experiment = assemble(config)
    graph, world = experiment.topology, experiment.world
    name = config.resolved["topology"]["name"]
    family: Family = getattr(experiment.algorithm, "family", "doubly")
    if not experiment.algorithm.pattern.peers:
        say(f"algorithm {config.resolved['algorithm']['name']} does not run on a graph: the weights of dsgd are shown")
    said = numbers(graph, world, family)
    rate = mixing_rate(graph, world, family, experiment.participation, experiment.link)
    console.rows_table([{"topology": name, **said, "mixing": rate}])
    gap = "1 minus the factor per round by which differences between nodes shrink, with all nodes of round 0 at work"
    say(f"gap: {gap}")
    say("mixing: the same, measured with this participation and these links")
    if world.count > MOST:
        say(f"no figure: it shows {MOST} nodes at most")
        return
    path = Path(args.out) / "topology.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    matrix = first_mixing(graph, world, family).matrix
    topology_figure(matrix, name, graph.directed, f"{name}, {world.count} nodes", said).savefig(path)
    say(f"written  {path}")


def profile(args: argparse.Namespace) -> None:
    free = ("runtime.backend=local", "eval.every=0", "runtime.vectorize=auto", "runtime.layout=auto")
    config = _config(args, *free)
    from raylfl.cli.listing import print_profile
    from raylfl.execution.planned import prepare
    from raylfl.runtime.profile import profile

    with console.working("timing rounds"):
        timings, kernels = profile(prepare(config), args.rounds)
    print_profile(timings, kernels)


def theory(args: argparse.Namespace) -> None:
    config = _config(args)
    from raylfl.execution.planned import prepare
    from raylfl.theory.summary import theory_of

    with console.working("computing the constants"):
        theory = theory_of(prepare(config))
    if args.json:
        from raylfl.runtime.records.lines import jsonable

        print(json.dumps(jsonable(theory.as_dict()), indent=1))
        return
    constants = [(c.symbol, f"{c.value:.4g}", c.meaning, c.how) for c in theory.constants]
    console.print_cells(constants, ("", "value", "meaning", "how"), "Constants")
    if theory.steps:
        steps = [
            (s.theorem, s.case, f"{s.largest:.4g}", "inside" if s.admits(theory.eta) else "OUTSIDE", s.formula)
            for s in theory.steps
        ]
        heads = ("theorem", "case", "at most", "this run", "condition")
        console.print_cells(steps, heads, f"Step sizes (local.lr is {theory.eta:g})")
    if theory.promises:
        promises = [(p.theorem, p.what, f"{p.value:.4g}") for p in theory.promises]
        console.print_cells(promises, ("theorem", "", "value"), "Rates and limits")
    for note in theory.notes:
        say(f"note: {note}")


def list_all(args: argparse.Namespace) -> None:
    from raylfl.cli.listing import list_kind, list_own

    for what in args.what or KINDS:
        if what in KINDS:
            list_kind(what, with_title=len(args.what) != 1)
        else:
            list_own(what)


def new(args: argparse.Namespace) -> None:
    from raylfl.cli.new import KINDS as KNOWN
    from raylfl.cli.new import new, new_job

    if args.kind not in (*KNOWN, "job"):
        raise BadConfig(f"new {args.kind}: there are templates of {', '.join(KNOWN)} and job")
    if (args.kind == "job") != (args.name is None):
        raise BadConfig("new job takes no NAME" if args.name else f"new {args.kind} needs a NAME, such as FedCM")
    for path in new_job(Path(args.out)) if args.kind == "job" else new(args.kind, args.name, Path(args.out)):
        print(f"written  {path}")
    print("try      " + ("head -1 jobs/*" if args.kind == "job" else f"pytest {path}"))


def doctor(args: argparse.Namespace) -> int:
    from raylfl.cli.doctor import findings

    missing = []
    for finding in findings():
        print(finding)
        missing += [finding.subject] * (finding.state == "missing")
    state = f"needs what is missing: {', '.join(missing)}" if missing else "has all that it needs"
    print(f"raylfl run digits {state}")
    return 1 if missing else 0


def schema(args: argparse.Namespace) -> None:
    if args.sweep:
        from raylfl.tune.spec import sweep_schema as of_file
    else:
        from raylfl.config.json_schema import config_schema as of_file
    print(json.dumps(of_file(), indent=1))


def runs(args: argparse.Namespace) -> None:
    from raylfl.cli.listing import list_runs

    list_runs(args.paths or ["runs"], args.where)


def diff(args: argparse.Namespace) -> None:
    from raylfl.cli.listing import list_differences

    list_differences(args.paths, args.where)
