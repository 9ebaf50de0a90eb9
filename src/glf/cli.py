"""The commands, and which function each of them calls. Torch is imported only if needed."""

import io
import os
import signal
import sys
from typing import Annotated, Any

import tyro
from rich.console import Console

from glf.config.evaluation import CompareConfig, DoctorConfig, EvaluateConfig, MethodsConfig, ReportConfig, VerifyConfig
from glf.config.examples import with_examples
from glf.config.inference import EmbedConfig, ExportConfig, OutliersConfig, SearchConfig, ShardConfig
from glf.config.training import PretrainConfig
from glf.files import printable
from glf.health.examine import UnhealthyRunError


def commands(preset: PretrainConfig | None = None, asked: str = "") -> Any:
    """All commands; ``preset`` takes the place of pretraining's defaults. The one that is asked for has examples."""

    def command(name: str, kind: type, **more: Any) -> Any:
        described = with_examples(name, kind) if name == asked else kind.__doc__
        return tyro.conf.subcommand(name, description=described, **more)

    return (
        Annotated[PretrainConfig, command("pretrain", PretrainConfig, **({"default": preset} if preset else {}))]
        | Annotated[EvaluateConfig, command("evaluate", EvaluateConfig)]
        | Annotated[CompareConfig, command("compare", CompareConfig)]
        | Annotated[VerifyConfig, command("verify", VerifyConfig)]
        | Annotated[ReportConfig, command("report", ReportConfig)]
        | Annotated[ShardConfig, command("shard", ShardConfig)]
        | Annotated[EmbedConfig, command("embed", EmbedConfig)]
        | Annotated[SearchConfig, command("search", SearchConfig)]
        | Annotated[OutliersConfig, command("outliers", OutliersConfig)]
        | Annotated[ExportConfig, command("export", ExportConfig)]
        | Annotated[DoctorConfig, command("doctor", DoctorConfig)]
        | Annotated[MethodsConfig, command("methods", MethodsConfig), tyro.conf.Positional]
    )


def main(arguments: list[str] | None = None) -> None:
    """The entry point. Mistakes of the caller end in one line and exit code 2; GLF_DEBUG=1 shows the traceback."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that is no text should not cost what is said about it
            stream.reconfigure(errors="backslashreplace")
    try:
        config: Any = tyro.cli(
            commands(_with_recipe(arguments), next(iter(arguments), "")),
            prog="glf",
            description="Self-supervised image representations: an aligning part plus a constraining part.",
            args=arguments,
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalRequiredArgs),
        )
        if isinstance(config, PretrainConfig) and config.recipe is not None:
            from glf.recipes import completed

            config = completed(config)
        run(config)
    except KeyboardInterrupt as error:
        message = (
            "interrupted; a run goes on with --resume from its last checkpoint, a comparison with the same command"
        )
        _fail(str(error) or message, 128 + getattr(error, "signal", signal.SIGINT), of_all=True)
    except UnhealthyRunError as error:
        _fail(str(error), 3, of_all=True)
    except (ValueError, LookupError, OSError) as error:
        if os.environ.get("GLF_DEBUG"):
            raise
        _fail(str(error), 2)


def _with_recipe(arguments: list[str]) -> PretrainConfig | None:
    """Pretraining's defaults where --recipe is given, so that whatever else is given counts."""
    if arguments[:1] != ["pretrain"]:
        return None
    given = {name: _value(arguments, name) for name in ("method", "recipe")}
    if given["recipe"] is None:
        return None
    from glf.recipes import with_recipe

    return with_recipe(PretrainConfig(method=given["method"] or PretrainConfig.method), given["recipe"])


def _value(arguments: list[str], name: str) -> str | None:
    """What follows --name, or --name=."""
    for part, following in zip(arguments, [*arguments[1:], ""], strict=True):
        if part == f"--{name}":
            return following
        if part.startswith(f"--{name}="):
            return part.partition("=")[2]
    return None


def run(
    config: PretrainConfig
    | EvaluateConfig
    | CompareConfig
    | VerifyConfig
    | ReportConfig
    | ShardConfig
    | EmbedConfig
    | SearchConfig
    | OutliersConfig
    | ExportConfig
    | DoctorConfig
    | MethodsConfig,
) -> None:
    """Do what a configuration asks for."""
    console = Console()
    if isinstance(config, PretrainConfig):
        from glf.train.run import pretrain

        pretrain(config, console)
    elif isinstance(config, EvaluateConfig):
        from glf.evaluation.suite import evaluate

        evaluate(config, console)
    elif isinstance(config, CompareConfig):
        from glf.comparison.conduct import compare

        compare(config, console)
    elif isinstance(config, VerifyConfig):
        from glf.comparison.verification import verify

        same = verify(config, console)
        console.print("same" if same else "different")
        sys.exit(0 if same else 1)
    elif isinstance(config, ReportConfig):
        from glf.reporting.page import write_report

        count = write_report(config.runs, config.out, config.figures)
        words = f"{count} run{'s' if count != 1 else ''} in {config.out.resolve().as_uri()}"
        console.print(words, highlight=False, soft_wrap=True, markup=False)
    elif isinstance(config, ShardConfig):
        from glf.sharding import shard

        shard(config, console)
    elif isinstance(config, EmbedConfig):
        from glf.inference.embedding import embed

        embed(config, console)
    elif isinstance(config, SearchConfig):
        from glf.inference.image_search import search

        search(config, console)
    elif isinstance(config, OutliersConfig):
        from glf.inference.outlier_search import outliers

        outliers(config, console)
    elif isinstance(config, ExportConfig):
        from glf.exporting.write import export

        export(config, console)
    elif isinstance(config, DoctorConfig):
        _print_findings(console, config)
    elif config.name is not None:
        _print_method(console, config.name)
    else:
        _print_methods(console)


def _print_findings(console: Console, config: DoctorConfig) -> None:
    from glf.health.examine import diagnose

    found, judged = diagnose(config.run)
    for finding in found:
        console.print(f"[bold red]{finding.name}[/] since step {finding.since}", highlight=False)
        for word, text in (("seen", finding.evidence), ("why", finding.why), ("try", finding.advice)):
            console.print(f"  {word:6}{_escape(text)}", highlight=False, soft_wrap=True)
    console.print(f"{'sick' if found else 'healthy'} ({judged})", highlight=False, soft_wrap=True)
    sys.exit(1 if found else 0)


def _print_method(console: Console, name: str) -> None:
    from glf.methods import parse
    from glf.recipes import recipes

    method = parse(name)
    objective = method.build()
    console.print(f"[bold]{method.title}[/]: {_escape(method.paper)}", highlight=False)
    console.print("\n".join(f"  {part.role:10}{_escape(_described(weight, part))}" for weight, part in objective.parts))
    for step in objective.transforms:
        console.print(f"  map       {_escape(str(step.formula))}", highlight=False)
    if method.architecture:
        console.print(f"  beside    {_escape(method.architecture)}", highlight=False)
    options = "  ".join(f"{key} {value:g}" for key, value in method.options.items())
    console.print(f"options (--options NAME VALUE): {options or 'none'}", highlight=False)
    for key, recipe in recipes(method.name).items():
        console.print(_escape(recipe.described(method.name, key)), highlight=False, soft_wrap=True)


def _print_methods(console: Console) -> None:
    from rich.table import Table

    from glf.config.training import AdcOptions
    from glf.methods import CONSTRAINTS, METHODS

    table = Table("method", "aligning part", "constraining part", "paper", show_lines=True)
    for name, method in METHODS.items():
        objective = method.build()
        align = "\n".join(_described(weight, term) for weight, term in objective.align.parts)
        constrain = [_described(w, t) for w, t in objective.constrain.parts] if objective.constrain else []
        constrain += [f"map: {step.formula}" for step in objective.transforms]
        constrain += [f"architecture: {method.architecture}"] if method.architecture else []
        table.add_row(name, align, "\n".join(constrain), method.paper)
    console.print(table)
    added = Table("add with +", "constraining part")
    for name, build in CONSTRAINTS.items():
        added.add_row(name, "\n".join(_described(weight, term) for weight, term in build(AdcOptions()).parts))
    console.print(added)


def _described(weight: float, term: Any) -> str:
    factor = "" if weight == 1 else f"{weight:g} "
    return f"{factor}{term.name}: {term.formula}"


def _fail(message: str, code: int, of_all: bool = False) -> None:
    """One line and an exit code. What all processes of a run have to say, the first one says."""
    if of_all and any(os.environ.get(name, "0") != "0" for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID")):
        sys.exit(code)
    message = "\n".join(printable(line) for line in message.split("\n"))
    Console(stderr=True).print(f"[bold red]glf:[/] {_escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)


def _escape(message: str) -> str:
    from rich.markup import escape

    return escape(message)
