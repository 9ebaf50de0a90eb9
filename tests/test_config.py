"""Settings survive JSON; unknown keys do not."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from glf.config.adc import AdcOptions
from glf.config.base import from_dict, nearest, to_dict
from glf.config.evaluation import DetectOptions, EvaluateConfig
from glf.config.inference import SearchConfig
from glf.config.training import PretrainConfig


def test_round_trip_through_json() -> None:
    config = PretrainConfig(
        data="x.tar", out=Path("runs/a"), projector=(64, 32), options={"temperature": 0.2}, adc=AdcOptions(nu=1.0)
    )
    assert from_dict(PretrainConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_round_trip_of_an_evaluation() -> None:
    config = EvaluateConfig(run=Path("runs/a"), knn_k=10)
    assert from_dict(EvaluateConfig, json.loads(json.dumps(to_dict(config)))) == config


def test_settings_of_detection_round_trip_and_have_names_of_their_own() -> None:
    options = DetectOptions(boxes="ships", detect_lr=(0.01, 0.02))
    assert from_dict(DetectOptions, json.loads(json.dumps(to_dict(options)))) == options
    assert not {f.name for f in fields(DetectOptions)} & {
        f.name for f in fields(EvaluateConfig)
    }  # flags have no prefix


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epoch": 3}, "'epoch' - did you mean 'epochs'"),
        ({"adc": {"upsilno": 1.0}}, "'upsilno' - did you mean 'upsilon'"),
        ({"qqq": 1}, "unknown configuration key 'qqq'$"),
    ],
)
def test_unknown_keys_name_the_nearest(values: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        from_dict(PretrainConfig, values)


def test_frozen_and_keyword_only() -> None:
    with pytest.raises(AttributeError):
        PretrainConfig().epochs = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        PretrainConfig("cifar10")  # type: ignore[misc]


def test_nearest_is_silent_when_nothing_is_near() -> None:
    assert nearest("zzz", ["simclr"]) == ""
    assert nearest("simlcr", ["simclr", "byol"]) == " - did you mean 'simclr'?"


def test_paths_may_be_given_where_names_are_possible_too(tmp_path: Path) -> None:
    search = from_dict(SearchConfig, {"run": tmp_path, "images": [tmp_path / "a.jpg", "photos"], "out": "found.csv"})
    assert (search.run, search.images, search.out) == (
        str(tmp_path),
        (str(tmp_path / "a.jpg"), "photos"),
        Path("found.csv"),
    )
    training = from_dict(PretrainConfig, {"data": tmp_path, "prior": tmp_path, "out": "runs/a"})
    assert (training.data, training.prior, training.out) == (str(tmp_path), str(tmp_path), Path("runs/a"))
