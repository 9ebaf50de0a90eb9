"""glf pretrain | evaluate | report | methods. Torch is imported only by the command that needs it."""

import os
import sys
from typing import Annotated, Any

import tyro
from rich.console import Console

from glf.config import EvaluateConfig, MethodsConfig, PretrainConfig, ReportConfig

Command = (
    Annotated[PretrainConfig, tyro.conf.subcommand("pretrain")]
    | Annotated[EvaluateConfig, tyro.conf.subcommand("evaluate")]
    | Annotated[ReportConfig, tyro.conf.subcommand("report")]
    | Annotated[MethodsConfig, tyro.conf.subcommand("methods")]
)


def main(arguments: list[str] | None = None) -> None:
    """The entry point. Mistakes of the caller end in one line and exit code 2; GLF_DEBUG=1 shows the traceback."""
    command: Any = Command
    config = tyro.cli(
        command,
        prog="glf",
        description="Self-supervised image representations: an aligning part plus a constraining part.",
        args=arguments,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.PositionalRequiredArgs),
    )
    try:
        run(config)
    except KeyboardInterrupt:
        _fail("interrupted; a run goes on from its last finished epoch with --resume", 130)
    except (ValueError, LookupError, OSError) as error:
        if os.environ.get("GLF_DEBUG"):
            raise
        _fail(str(error), 2)


def run(config: PretrainConfig | EvaluateConfig | ReportConfig | MethodsConfig) -> None:
    """Do what a configuration asks for."""
    console = Console()
    if isinstance(config, PretrainConfig):
        from glf.train.run import pretrain

        pretrain(config, console)
    elif isinstance(config, EvaluateConfig):
        from glf.evaluate.suite import evaluate

        evaluate(config, console)
    elif isinstance(config, ReportConfig):
        from glf.report.page import write_report

        count = write_report(config.runs, config.out)
        console.print(f"{count} run{'s' if count > 1 else ''} in {config.out}", highlight=False, soft_wrap=True)
    else:
        _print_methods(console)


def _print_methods(console: Console) -> None:
    from rich.table import Table

    from glf.config import AdcOptions
    from glf.methods import CONSTRAINTS, METHODS

    table = Table("method", "aligning part", "constraining part", "paper", show_lines=True)
    for name, method in METHODS.items():
        objective = method.build()
        align = "\n".join(_described(weight, term) for weight, term in objective.align.parts)
        constrain = [_described(w, t) for w, t in objective.constrain.parts] if objective.constrain else []
        constrain += [f"map: {step.formula}" for step in objective.through]
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


def _fail(message: str, code: int) -> None:
    Console(stderr=True).print(f"[bold red]glf:[/] {_escape(message)}", highlight=False, soft_wrap=True)
    sys.exit(code)


def _escape(message: str) -> str:
    from rich.markup import escape

    return escape(message)
