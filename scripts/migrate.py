"""Update files that an earlier version of glf has written (schema 1) to the present one, in place.

    python scripts/migrate.py runs/a runs/compare

Each PATH is a file, or a folder that is searched. Updated are config.json, result.json, metrics.jsonl and
artifacts/report.json of runs, compare.json of comparisons, and the stored results of benchmarks. Checkpoints are not:
a run of an earlier version cannot be resumed. Files that are up to date are left alone, so the command can be repeated.
"""

import argparse
import hashlib
import json
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from glf.comparison.runs import reference_key, run_key
from glf.comparison.study import Study, from_file
from glf.config.base import from_dict, to_dict
from glf.config.evaluation import EvaluateConfig
from glf.config.training import PretrainConfig, with_defaults
from glf.evaluation.theorem import LABELS
from glf.result import RESULT_SCHEMA, write_file
from glf.rundir import RESUMABLE_FIELDS
from glf.runfiles import COMPARISON, CONFIG, METRICS, RESULT

Content = dict[str, Any]
BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"

TRAINING = {
    "views": "augment",
    "momentum": "ema_momentum",
    "limit": "max_images",
    "choose": "auto",
    "stop_when_sick": "stop_on_problem",
}
EVALUATION = {
    "limit": "max_images",
    "beside": "compare_with",
    "probe_rates": "probe_lrs",
    "strengths": "logistic_c",
    "finetune_rows": "finetune_indices",
}
COMPARE = {"judging": "evaluation"}
DROPPED = {"masks": (None,), "concentration": (None, 1.0)}  # and the values that can be dropped
PROTOCOLS = (
    (r"^5-nn \(Euclidean, majority\)$", "k-NN (k = 5, Euclidean, majority vote)"),
    (r"^kNN \(cosine, k (\d+), temperature (.+)\)$", r"k-NN (k = \1, cosine, temperature \2)"),
    (r"^(uniformity .*), t 2\)$", r"\1, t = 2)"),
    (r"^share of the variance between classes$", "fraction of the variance between classes"),
    (r", batches of (\d+), lr (.*), statistics of ", r", batch size \1, lr \2, normalisation statistics of "),
)


def rename(settings: Mapping[str, Any], names: Mapping[str, str]) -> Content:
    """Rename the fields of a config, also of the configs in it; raise a ValueError if a dropped option was in use."""
    found: Content = {}
    for name, value in settings.items():
        if name in DROPPED:
            if value not in DROPPED[name]:
                raise ValueError(f"{name} is {value!r}, and this option no longer exists: train the run again")
        elif name in ("adc", "finetune", "detect"):
            found[name] = rename(value, names)
        else:
            found[names.get(name, name)] = value
    return found


def command_line(text: str) -> str:
    """Rename the flags of a recorded command; other programs' commands stay as they are."""
    tables = {"pretrain": TRAINING, "evaluate": EVALUATION, "compare": COMPARE}
    words = shlex.split(text)
    if words[:1] != ["glf"] or words[1] not in tables:
        return re.sub(r"--views\b", "--augment", text) if "colour_forms.py" in text else text
    names, found = tables[words[1]], words[:2]
    inner: Mapping[str, str] = {}  # of --settings and --judging, which take names and values in turn
    name, is_name = "", True
    for word in words[2:]:
        if word.startswith("--"):
            flag, equals, value = word.removeprefix("--").partition("=")
            no = "no-" if flag.startswith("no-") else ""
            name = flag.removeprefix(no).replace("-", "_")
            inner, is_name = {"settings": TRAINING, "judging": EVALUATION}.get(name, {}), True
            word = f"--{no}{names.get(name, name).replace('_', '-')}{equals}{value}"
        else:
            word, is_name = inner.get(word, word) if is_name else word, not is_name
        if name not in DROPPED:
            found.append(word)
    return shlex.join(found)


def protocols(texts: Mapping[str, str]) -> Content:
    """Use the present wording of the protocols."""
    found = {name: LABELS.get(name, text) for name, text in texts.items()}
    for old, new in PROTOCOLS:
        found = {name: re.sub(old, new, text) for name, text in found.items()}
    return found


def result(content: Content) -> Content:
    """Update the content of result.json."""
    content = {**content, "schema": RESULT_SCHEMA}
    if "config" in content:
        content["config"] = rename(content["config"], TRAINING)
    if "objective" in content:
        content["objective"] = {{"maps": "transforms"}.get(n, n): v for n, v in content["objective"].items()}
    if "training" in content:
        content["training"] = {{"waiting": "data_wait"}.get(n, n): v for n, v in content["training"].items()}
    if "command" in content:
        content["command"] = command_line(content["command"])
    if "evaluation" in content:
        evaluation = content["evaluation"] = {**content["evaluation"]}
        evaluation["config"] = rename(evaluation["config"], EVALUATION)
        evaluation["protocols"] = protocols(evaluation["protocols"])
        evaluation["command"] = command_line(evaluation["command"])
    return content


def comparison(content: Content) -> Content:
    """Update the content of compare.json, except for the keys of its runs."""
    content = {**content, "schema": RESULT_SCHEMA, "command": command_line(content["command"])}
    content["settings"] = rename(content["settings"], TRAINING)
    content["variants"] = {name: rename(variant, TRAINING) for name, variant in content["variants"].items()}
    content["runs"] = [
        {
            **{{"place": "path"}.get(name, name): value for name, value in run.items()},
            "protocols": protocols(run["protocols"]),
            "command": command_line(run["command"]),
        }
        for run in content["runs"]
    ]
    evaluated = {data: {**how, "protocols": protocols(how["protocols"])} for data, how in content["judged"].items()}
    return {"evaluated" if n == "judged" else n: evaluated if n == "judged" else v for n, v in content.items()}


def with_keys_of_runs(content: Content, folder: Path) -> Content:
    """Compute the keys of a comparison's runs from their directories, which are up to date already."""
    for run in content["runs"]:
        directory = folder / run["path"]
        if (directory / CONFIG).exists() and (directory / RESULT).exists():
            training = json.loads((directory / CONFIG).read_text())
            training.pop("schema")
            evaluation = json.loads((directory / RESULT).read_text())["evaluation"]["config"]
            both = with_defaults(from_dict(PretrainConfig, training)), from_dict(EvaluateConfig, evaluation)
            run |= {"key": run_key(*both), "reference": reference_key(*both)}
    return content


def with_keys_of_study(content: Content, study: Study) -> Content:
    """Compute the keys of a stored study from its file, after checking that the old keys follow from it, too."""
    keys, references = {}, {}
    for cell in study.cells():
        keys[_old_key(study, cell)] = run_key(*study.configs(cell))
        references[_old_key(study, cell, _OLD_REFERENCE_FIELDS)] = reference_key(*study.configs(cell))
    for run in content["runs"]:
        if run["key"] not in keys or run["reference"] not in references:
            raise ValueError(f"{run['path']} has a key that does not follow from its study: was the study changed?")
        run["key"], run["reference"] = keys[run["key"]], references[run["reference"]]
    return {**content, "title": study.title, "settings": study.settings, "variants": study.variants}


_OLD_REFERENCE_FIELDS = {"data", "limit", "val_images", "labels", "seed", "backbone", "image_size", "stem"}
_NOT_IN_OLD_KEY = {"run", "references", "artifacts", "device", "batch_size", "root", "download"}


def _old_key(study: Study, cell: Any, only: set[str] | None = None) -> str:
    """The key of the earlier version: a hash of fields by their old names, without unset ones."""

    def fields(values: Content, names: Mapping[str, str]) -> Content:
        back = {new: old for old, new in names.items()}
        found = {back.get(name, name): value for name, value in values.items()}
        for group in ("adc", "finetune"):
            if group in found:
                found[group] = {back.get(name, name): value for name, value in found[group].items()}
        return {name: v for name, v in found.items() if v is not None and v is not False and v != {}}

    training = fields(to_dict(study.config(cell)), TRAINING)
    training["adc"]["concentration"] = 1.0
    ignored = RESUMABLE_FIELDS | {"recipe", "choose", "stop_when_sick"}
    training = {n: v for n, v in training.items() if (n not in ignored if only is None else n in only)}
    evaluation = fields(to_dict(study.evaluate_config(Path())), EVALUATION)
    evaluation = {name: value for name, value in evaluation.items() if name not in _NOT_IN_OLD_KEY}
    text = json.dumps((training, evaluation), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def stored_study(name: str, content: Content) -> Study | None:
    """The study of a file of benchmarks/results/studies."""
    if name == "outliers":
        sys.path.insert(0, str(BENCHMARKS))
        import outliers

        return outliers.study(content["command"].rpartition(" ")[2], tuple(content["data"]))
    path = BENCHMARKS / "studies" / f"{name}.toml"
    return replace(from_file(path, "tiny"), data=tuple(content["data"])) if path.exists() else None


def migrate(path: Path) -> bool:
    """Update a file; return whether it has changed."""
    text = path.read_text()
    if path.name == METRICS:
        new = text.replace('"waiting": ', '"data_wait": ')
    else:
        content = json.loads(text)
        new = json.dumps(updated(path, content), indent=None if "\n" not in text.strip() else 1) + "\n"
    if new == text:
        return False
    write_file(path, new)
    return True


def updated(path: Path, content: Content) -> Content:
    """The updated content of a JSON file."""
    if path.name == CONFIG and "schema" not in content and {"method", "data", "seed"} <= content.keys():
        return {"schema": RESULT_SCHEMA, **rename(content, TRAINING)}
    if path.parent == BENCHMARKS / "results":
        names = {"limit": "max_images"} if path.name == "prior.json" else {}
        content = {names.get(name, name): value for name, value in content.items()}
        return {**content, "command": command_line(content["command"])} if "command" in content else content
    if content.get("schema") != 1:
        return content
    if path.name == RESULT:
        return result(content)
    if "columns" in content:  # artifacts/report.json
        return {**content, "schema": RESULT_SCHEMA}
    if content.get("kind") != "compare":
        return content
    content = comparison(content)
    if path.name == COMPARISON:
        return with_keys_of_runs(content, path.parent)
    study = stored_study(path.stem, content)
    return content if study is None else with_keys_of_study(content, study)


def files(path: Path) -> Iterator[Path]:
    """The files below a folder that may have to be updated; comparisons come after their runs."""
    if path.is_file():
        yield path
        return
    for name in (CONFIG, RESULT, METRICS, "report.json", COMPARISON):
        yield from sorted(path.rglob(name))
    if (path / "studies").is_dir():
        yield from sorted([*path.glob("*.json"), *(path / "studies").glob("*.json")])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, nargs="+")
    for path in parser.parse_args().path:
        for file in files(path.resolve()):
            try:
                changed = migrate(file)
            except (ValueError, OSError) as error:
                sys.exit(f"{file}: {error}")
            if changed:
                print(f"updated {file}")


if __name__ == "__main__":
    main()
