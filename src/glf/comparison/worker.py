"""The process that trains and evaluates one run of a comparison: ``python -m glf.comparison.worker JOB``.

JOB is a JSON file with the configs of both. The process holds the run's lock: a second comparison in the same directory
waits for it, also when the comparison that started it has been killed.
"""

import io
import json
import sys
import traceback
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from glf.comparison.runs import evaluated_result
from glf.comparison.study import flags
from glf.config.base import from_dict
from glf.config.evaluation import EvaluateConfig
from glf.config.training import AdaptConfig, ResolvedPretrainConfig, config_type, with_defaults
from glf.files import exclusive_lock
from glf.runfiles import LAST, RESULT


def work(training: ResolvedPretrainConfig, evaluation: EvaluateConfig) -> None:
    """Train and evaluate a run, starting from what an earlier attempt has left."""
    run = evaluation.run
    with exclusive_lock(run):
        if evaluated_result(run, evaluation) is not None:  # another process did it meanwhile
            return
        if not (run / RESULT).exists():
            resume = (run / LAST).exists()
            training = replace(training, out=run, resume=resume, overwrite=not resume)
            if isinstance(training, AdaptConfig):
                from glf.adaptation.run import adapt

                sys.argv = ["glf", "adapt", *flags(training)]
                adapt(training)
            else:
                from glf.train.run import pretrain

                sys.argv = ["glf", "pretrain", *flags(training)]
                pretrain(training)
        from glf.evaluation.suite import evaluate

        sys.argv = ["glf", "evaluate", str(run), *flags(evaluation)]
        evaluate(evaluation)


def main() -> None:
    """Read the job and do it; the last line of the output names the error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may contain bytes that are not text
            stream.reconfigure(errors="backslashreplace")
    job = json.loads(Path(sys.argv[1]).read_text())
    # work() sets sys.argv to commands of glf: results record them, and Lightning repeats them for further devices.
    sys.modules["__main__"].__spec__ = find_spec("glf.__main__")
    try:
        training = with_defaults(from_dict(config_type(job["pretrain"]), job["pretrain"]))
        work(training, from_dict(EvaluateConfig, job["evaluate"]))
    except (Exception, KeyboardInterrupt) as error:
        traceback.print_exc()
        sys.exit(f"glf: {error}")


if __name__ == "__main__":
    main()
