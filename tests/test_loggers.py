"""What the loggers have is what metrics.jsonl has, also after kills and evaluations; one that fails ends no run."""

import csv
import json
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
from rich.console import Console

from glf.cli import main
from glf.config.base import to_dict
from glf.config.evaluation import EvaluateConfig
from glf.config.training import AdaptConfig, PretrainConfig
from glf.data.sources import load_images
from glf.evaluation.suite import evaluate
from glf.health.examine import read_metrics
from glf.loggers import Loggers, check_installed, evaluation_record, final_record, read_state
from glf.result import read_result
from glf.rundir import read_config
from glf.train.run import pretrain
from machine import files_up_to

Points = dict[str, list[tuple[int, float]]]  # of a series: steps and values
TIMES = {"images_per_second", "data_wait"}  # of a step that is repeated, they are others


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PretrainConfig:
    """A run of eight steps, with a checkpoint after every four."""
    data = tmp_path_factory.mktemp("data") / "few.npz"
    arrays = {}
    for split, count in (("train", 160), ("test", 60)):
        source = load_images("fashion-mini", split)
        arrays |= {f"{split}_images": source.pixels[:count], f"{split}_labels": source.targets[:count]}
    np.savez(data, **arrays)
    return PretrainConfig(
        data=str(data), method="simclr", batch_size=32, epochs=2, log_every=1, val_images=32, device="cpu", workers=0
    )


@pytest.fixture(scope="module")
def run(config: PretrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with both loggers that need no server, evaluated."""
    out = tmp_path_factory.mktemp("runs") / "$HOME and more"
    pretrain(replace(config, out=out, logger=("tensorboard", "csv", "csv")), Console(quiet=True))
    evaluate(EvaluateConfig(run=out, suite=("knn", "geometry"), artifacts=False), Console(quiet=True))
    return out


def in_jsonl(run: Path) -> Points:
    return as_points((dict(record), int(record["step"])) for record in read_metrics(run))


def in_csv(run: Path) -> Points:
    with open(run / "loggers" / "csv" / "metrics.csv", newline="") as file:
        rows = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    return as_points((row, int(row["step"])) for row in rows)


def in_tensorboard(run: Path) -> Points:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(run / "loggers" / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def as_points(records: Any) -> Points:
    points: Points = {}
    for record, step in records:
        for name in record.keys() - {"step"}:
            points.setdefault(name, []).append((step, record[name]))
    return points


def training(points: Points) -> Points:
    return {name: values for name, values in points.items() if not name.startswith(("result/", "evaluation/"))}


def test_csv_has_every_record_of_metrics_jsonl(run: Path) -> None:
    expected = in_jsonl(run)
    assert {step for step, _ in expected["loss"]} == set(range(1, 9))
    assert training(in_csv(run)) == expected


def test_tensorboard_has_every_record_of_metrics_jsonl(run: Path) -> None:
    found, expected = training(in_tensorboard(run)), in_jsonl(run)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert [step for step, _ in found[name]] == [step for step, _ in values], name
        np.testing.assert_allclose([y for _, y in found[name]], [y for _, y in values], rtol=1e-6)  # float32


@pytest.mark.parametrize("read", [in_csv, in_tensorboard])
def test_the_result_and_the_evaluation_are_logged_at_the_last_step(read: Callable[[Path], Points], run: Path) -> None:
    content, found = read_result(run), read(run)
    assert {name for name in found if name.startswith("result/")} == {f"result/{name}" for name in content["training"]}
    for row, values in content["evaluation"]["rows"].items():
        assert row in ("pixels", "untrained", "trained")
        for name, value in values.items():
            assert found[f"evaluation/{row}/{name}"] == [(8, pytest.approx(value, rel=1e-6))]
    assert found["result/val/knn"] == [(8, pytest.approx(content["training"]["val/knn"], rel=1e-6))]


def test_the_config_is_logged(run: Path) -> None:
    import yaml
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    saved = to_dict(read_config(run))
    assert saved["logger"] == ["tensorboard", "csv", "csv"]
    assert yaml.safe_load((run / "loggers" / "csv" / "hparams.yaml").read_text()) == saved
    events = EventAccumulator(str(run / "loggers" / "tensorboard")).Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    found = HParamsPluginData.FromString(content).session_start_info.hparams
    assert found["lr"].number_value == saved["lr"]
    assert found["method"].string_value == "simclr"
    assert found["adc/nu"].number_value == saved["adc"]["nu"]
    assert found["projector"].string_value == "None"
    assert len(found) == len(saved) - 1 + len(saved["adc"])


def test_everything_is_in_the_run_directory(run: Path) -> None:
    assert set(read_state(run)) == {"tensorboard", "csv"}
    assert sorted(path.name for path in run.parent.iterdir()) == [run.name], "no variable in the name is expanded"
    assert {path.name for path in (run / "loggers").iterdir()} == {"state.json", "tensorboard", "csv"}


class Fails(L.Callback):
    """Ends a run at a step, like a kill; ``before`` is done first."""

    def __init__(self, step: int, before: Callable[[], Any] = lambda: None) -> None:
        self.step, self.before = step, before

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any, **__: Any) -> None:
        if trainer.global_step == self.step:
            self.before()
            raise RuntimeError("killed")


def test_no_step_is_logged_twice_after_two_kills(config: PretrainConfig, tmp_path: Path) -> None:
    out, quiet = tmp_path / "run", Console(quiet=True)
    config = replace(config, out=out, logger=("tensorboard",))
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(config, quiet, callbacks=[Fails(7)])
    first = in_tensorboard(out)
    assert [step for step, _ in first["loss"]] == [1, 2, 3, 4, 5, 6, 7]
    # Another logger is added: it gets what was before the checkpoint, too.
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(replace(config, resume=True, logger=("tensorboard", "csv")), quiet, callbacks=[Fails(6)])
    assert [step for step, _ in in_jsonl(out)["loss"]] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in in_csv(out)["loss"]] == [1, 2, 3, 4, 5, 6]
    with open(out / "metrics.jsonl", "a") as file:
        file.write('{"step": 8, "loss')  # a kill in the middle of a line: no logger has that
    pretrain(PretrainConfig(out=out, resume=True), quiet)
    expected, found = in_jsonl(out), training(in_tensorboard(out))
    assert training(in_csv(out)) == expected
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert Counter(step for step, _ in found[name]) == Counter(step for step, _ in values), name
        if name not in TIMES:
            np.testing.assert_allclose([y for _, y in found[name]], [y for _, y in values], rtol=1e-6)


def test_a_probe_that_a_kill_prevented_is_logged_although_its_step_was(config: PretrainConfig, tmp_path: Path) -> None:
    """The line of the step and the line of the epoch have the same step."""
    config = replace(config, out=tmp_path / "run", logger=("tensorboard",))
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(config, Console(quiet=True), callbacks=[Fails(8)])
    assert [step for step, _ in in_tensorboard(tmp_path / "run")["val/knn"]] == [4]
    pretrain(replace(config, resume=True), Console(quiet=True))
    assert [step for step, _ in in_tensorboard(tmp_path / "run")["val/knn"]] == [4, 8]
    assert [step for step, _ in in_tensorboard(tmp_path / "run")["loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]


class Breaks(L.Callback):
    """At a step, the loggers' folders become files."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def on_train_batch_end(self, trainer: L.Trainer, *_: Any, **__: Any) -> None:
        if trainer.global_step == 3:
            for name in ("tensorboard", "csv"):
                shutil.rmtree(self.run / "loggers" / name)
                (self.run / "loggers" / name).write_text("")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of TensorBoard's writing thread
def test_a_logger_that_fails_is_named_once_and_the_run_ends_well(
    config: PretrainConfig, tmp_path: Path, console: Console
) -> None:
    out = tmp_path / "run"
    content = pretrain(replace(config, out=out, logger=("tensorboard", "csv")), console, callbacks=[Breaks(out)])
    assert content["training"]["val/knn"] >= 0
    assert [step for step, _ in in_jsonl(out)["loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    for name in ("tensorboard", "csv"):
        lines = [line for line in (out / "train.log").read_text().splitlines() if f"logger    {name} failed" in line]
        assert len(lines) == 1
        assert "at step 4 (" in lines[0]
        assert lines[0].endswith("it gets nothing more; the run directory has everything")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk(tmp_path: Path) -> None:
    said: list[str] = []
    with Loggers(tmp_path, ("tensorboard", "csv"), said.append) as loggers:
        loggers.begin({"lr": 0.1}, [], 0, resumed=False)
        with files_up_to(3_000):
            for step in range(100):
                loggers.log({"step": step, **{f"series {number}": 0.5 for number in range(20)}})
        assert not loggers.active
    assert len(said) == 2
    assert all("File too large" in line for line in said)


def test_a_logger_that_cannot_start_ends_a_new_run_but_not_a_resumed_one(tmp_path: Path) -> None:
    (tmp_path / "loggers").mkdir()
    (tmp_path / "loggers" / "tensorboard").touch()  # a file where its folder belongs
    said: list[str] = []
    loggers = Loggers(tmp_path, ("tensorboard", "csv"), said.append)
    with pytest.raises(ValueError, match=r"^--logger tensorboard could not be started \(.*\): leave it out, or repair"):
        loggers.begin({}, [], 0, resumed=False)
    loggers.begin({}, [], 0, resumed=True)
    assert list(loggers.active) == ["csv"]
    assert len(said) == 1


def test_an_evaluation_may_be_left_out_of_the_loggers(run: Path, tmp_path: Path, console: Console) -> None:
    before = in_csv(run), in_tensorboard(run)
    suite: dict[str, Any] = {"suite": ("knn",), "artifacts": False, "references": False}
    evaluate(EvaluateConfig(run=run, log=False, **suite), console)
    evaluate(EvaluateConfig(run=run, out=tmp_path / "elsewhere", **suite), console)
    assert (in_csv(run), in_tensorboard(run)) == before


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ('{"csv": {"run": 3}}', "is damaged, or was edited: csv.run must be text"),
        ('{"wandb": {"run": "../../x"}}', "is damaged, or was edited: see wandb; delete it"),
        ('{"../x": {}}', "is damaged, or was edited: see ../x; delete it"),
        ("[", "is not valid JSON"),
    ],
)
def test_a_damaged_state_does_not_harm_an_evaluation(
    state: str, words: str, run: Path, tmp_path: Path, console: Console
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "loggers" / "state.json").write_text(state)
    found = evaluate(EvaluateConfig(run=copy, suite=("knn",), artifacts=False, references=False), console)
    assert found["rows"]["trained"]["knn"] >= 0
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"state.json {words}" in said
    assert "; nothing is logged" in said


def test_overwriting_a_run_deletes_what_its_loggers_wrote(config: PretrainConfig, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = replace(config, out=out, epochs=1)
    pretrain(replace(config, logger=("csv",)), Console(quiet=True))
    assert (out / "loggers" / "csv" / "metrics.csv").is_file()
    pretrain(replace(config, overwrite=True), Console(quiet=True))
    assert not (out / "loggers").exists()
    pretrain(replace(config, dry_run=True, logger=("csv",), out=tmp_path / "dry"), Console(quiet=True))
    assert not (tmp_path / "dry").exists()


# --- mistakes, before anything is read


def test_an_unknown_logger(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["pretrain", "--data", "no/such", "--logger", "csv", "tensorbord"])
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "glf: unknown logger 'tensorbord' - did you mean 'tensorboard'?"
        " (--logger takes tensorboard, wandb, mlflow, csv)\n"
    )


@pytest.mark.parametrize("kind", [PretrainConfig, AdaptConfig])
@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow"])
def test_a_missing_package_names_the_extra(
    kind: type[PretrainConfig], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glf.adaptation.run import adapt

    monkeypatch.setattr("glf.loggers.find_spec", lambda _: None)
    config = kind(data="no/such", logger=("csv", name), out=tmp_path / "run")
    with pytest.raises(ValueError, match=rf"^--logger {name} needs its package: pip install 'glf\[{name}\]'$"):
        adapt(config) if isinstance(config, AdaptConfig) else pretrain(config)
    assert not (tmp_path / "run").exists()


def test_a_folder_of_that_name_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_logger_of_tests").mkdir()
    monkeypatch.setattr("glf.loggers._PACKAGES", ("a_logger_of_tests",))
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="needs its package"):
        check_installed(["a_logger_of_tests"])
    (tmp_path / "a_logger_of_tests" / "__init__.py").touch()
    check_installed(["a_logger_of_tests", "csv"])


def test_the_record_of_an_adaptation_compares_frozen_and_chosen() -> None:
    candidates = {"frozen": {"knn": 0.5, "kept": 1.0}, "average 0.75": {"knn": 0.6, "kept": 0.9}, "adapted": {}}
    content = {
        "training": {"val/rank": 3.0},
        "adaptation": {"candidates": candidates, "chosen": "average 0.75", "share": 0.75, "by": "knn"},
    }
    assert final_record(content, 8) == {
        "step": 8, "result/val/rank": 3.0, "result/share": 0.75, "result/frozen/knn": 0.5, "result/frozen/kept": 1.0,
        "result/chosen/knn": 0.6, "result/chosen/kept": 0.9,
    }  # fmt: skip


def test_other_models_in_the_table_are_not_logged() -> None:
    rows = {"pixels": {"knn": 0.4}, "trained": {"knn": 0.6, "logistic": None}, "runs/b": {"knn": 0.7}}
    evaluation = {"rows": rows, "methods": {"trained": "simclr", "runs/b": "byol"}}
    record = evaluation_record(evaluation, 8)
    assert record == {
        "step": 8, "evaluation/pixels/knn": 0.4, "evaluation/trained/knn": 0.6, "evaluation/trained/logistic": None
    }  # fmt: skip


# --- loggers with heavy packages


@pytest.mark.slow
def test_mlflow_in_a_local_store(config: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    out, other, quiet = tmp_path / "a run", tmp_path / "other", Console(quiet=True)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = replace(config, logger=("mlflow",), out=out)
    with pytest.raises(RuntimeError, match="killed"):
        pretrain(config, quiet, callbacks=[Fails(6)])
    pretrain(replace(config, out=other, epochs=1), quiet)  # in its own store, although in the same process
    pretrain(replace(config, resume=True), quiet)
    evaluate(EvaluateConfig(run=out, suite=("knn",), artifacts=False), quiet)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    client = MlflowClient((out / "loggers" / "mlflow").as_uri())
    experiment = client.get_experiment_by_name("glf")
    assert experiment is not None
    (stored,) = client.search_runs([experiment.experiment_id])
    assert stored.info.run_id == read_state(out)["mlflow"]["run"]
    assert (stored.info.status, stored.info.run_name) == ("FINISHED", "a run")
    assert (stored.data.params["method"], stored.data.params["adc/nu"]) == ("simclr", str(read_config(out).adc.nu))

    def history(name: str) -> list[tuple[int, float]]:
        return [(one.step, one.value) for one in client.get_metric_history(stored.info.run_id, name)]

    for name, values in in_jsonl(out).items():
        if name not in TIMES:
            assert history(name) == [(step, pytest.approx(value)) for step, value in values], name
    assert history("evaluation/trained/knn") == [(8, read_result(out)["evaluation"]["rows"]["trained"]["knn"])]
    assert (other / "loggers" / "mlflow").is_dir()


@pytest.mark.slow
def test_mlflow_server_that_is_not_there(config: PretrainConfig, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(ValueError, match=r"^--logger mlflow could not be started \(.*127\.0\.0\.1.*\): leave it out"):
        pretrain(replace(config, logger=("mlflow",), out=tmp_path / "run"), Console(quiet=True))


@pytest.mark.slow
def test_wandb_offline(config: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    out, quiet = tmp_path / "a run", Console(quiet=True)
    pretrain(replace(config, logger=("wandb",), out=out), quiet)
    evaluate(EvaluateConfig(run=out, suite=("knn",), artifacts=False), quiet)
    stored = sorted((out / "loggers" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(stored) == 2, "of training, and of the evaluation"
    assert {path.stem for path in stored} == {f"run-{read_state(out)['wandb']['run']}"}
    config_logged, points = of_wandb(stored[0])
    assert (config_logged["method"], config_logged["adc"]["nu"]) == ("simclr", read_config(out).adc.nu)
    assert training(points) == {
        name: [(s, pytest.approx(v)) for s, v in values] for name, values in in_jsonl(out).items()
    }
    value = read_result(out)["evaluation"]["rows"]["trained"]["knn"]
    assert of_wandb(stored[1])[1]["evaluation/trained/knn"] == [(8, pytest.approx(value))]


def of_wandb(path: Path) -> tuple[dict[str, Any], Points]:
    """The config and the history in a file that `wandb sync` would upload."""
    from wandb.proto import wandb_internal_pb2

    config, records = {}, []
    for data in chunks(path.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        for update in [*record.config.update, *record.run.config.update]:
            config[update.key or "/".join(update.nested_key)] = json.loads(update.value_json)
        row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if row:
            step = int(row.pop("trainer/global_step"))
            records.append(({name: value for name, value in row.items() if not name.startswith("_")}, step))
    return config, as_points(records)


def chunks(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KB, in which a record may be in several parts."""
    block, header = 32 * 1024, struct.Struct("<IHB")  # checksum, length, 1 whole | 2 first | 3 middle | 4 last
    at, found = 7, b""  # after W&B's own header
    while at + header.size <= len(data):
        if block - at % block < header.size:
            at += block - at % block
            continue
        _, length, kind = header.unpack_from(data, at)
        found += data[at + header.size : at + header.size + length]
        at += header.size + length
        if kind in (1, 4):
            yield found
            found = b""
