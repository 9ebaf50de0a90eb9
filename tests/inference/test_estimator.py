"""glf.Encoder in scikit-learn: its own checks, pipelines, grid search, and what fit trains."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

import glf
from glf.data.sources import load_images
from photos import BROKEN, write_photos

LITE = "timm:tf_efficientnet_lite0"  # with its published weights, from the package of the extra `prior`
QUICK = {"train": "norms", "val_images": 4, "batch_size": 8, "choose": False, "workers": 0}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = write_photos(tmp_path_factory.mktemp("holiday"), 24)
    for name in BROKEN:
        (folder / name).unlink()
    return [str(path) for path in sorted(folder.rglob("*.jpg"))]


@pytest.fixture(scope="module")
def labels(photos: list[str]) -> list[str]:
    return [Path(path).parent.name for path in photos]


# --- scikit-learn's checks

NOT_FOR_IMAGES = {
    "check_do_not_raise_errors_in_init_or_set_params": "the type checker of these tests refuses settings of -1",
    "check_n_features_in_after_fitting": "images have no fixed number of input features",
    "check_n_features_in": "images have no fixed number of input features",
    "check_dtype_object": "an array of objects has paths or images, not numbers",
    "check_complex_data": "expects the words that scikit-learn uses for numbers in a table",
    "check_estimators_empty_data_messages": "expects the words that scikit-learn uses for numbers in a table",
    "check_estimators_nan_inf": "expects the words that scikit-learn uses for numbers in a table",
}


class Rows(glf.Encoder):
    """Takes rows of numbers, which scikit-learn's checks give, as images of one row of pixels."""

    def fit(self, X: Any, y: Any = None) -> "Rows":  # noqa: N803
        super().fit(self._images(X), y)
        return self

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        return super().transform(self._images(X))

    def _images(self, rows: Any) -> Any:
        if issparse(rows):
            return rows
        rows = np.asarray(rows)
        if rows.ndim != 2 or rows.dtype.kind not in "fiub":
            return rows
        return (1 / (1 + np.exp(-rows.astype(np.float64))))[:, None, :, None]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = True
        return tags


OWN = parametrize_with_checks([Rows("pixels")], expected_failed_checks=lambda _: NOT_FOR_IMAGES, xfail_strict=True).mark
CHECKS = [one for one in OWN.args[1] if "array_api" not in str(one)]  # skipped unless SCIPY_ARRAY_API is set


@pytest.mark.parametrize(OWN.args[0], CHECKS, **OWN.kwargs)
def test_scikit_learn_checks(estimator, check):
    check(estimator)


# --- an encoder that is there


def test_features_are_those_of_load(photos):
    expected = glf.load(LITE, image_size=64)(photos).numpy()
    encoder = glf.Encoder(LITE, image_size=64)
    assert np.array_equal(encoder.transform(photos), expected), "without fit"
    assert np.array_equal(encoder.fit(photos).transform(np.array(photos)), expected)
    assert np.array_equal(encoder.transform(np.array(photos, dtype=object)[:, None]), expected), "a column of a table"
    assert expected.dtype == np.float32
    assert (encoder.result_, encoder.run_) == (None, None)
    names = encoder.get_feature_names_out()
    assert (len(names), names[0], names[-1]) == (1280, "encoder0", "encoder1279")
    with Image.open(photos[0]) as opened:
        np.testing.assert_allclose(encoder.transform([opened]), expected[:1], rtol=1e-3, atol=1e-3)


def test_in_a_pipeline_and_in_a_grid_search(photos, labels):
    pipeline = make_pipeline(glf.Encoder(LITE, image_size=32), LogisticRegression(max_iter=1000))
    assert cross_val_score(pipeline, photos, labels, cv=2).mean() > 0.6
    search = GridSearchCV(pipeline, {"encoder__image_size": [32, 64], "logisticregression__C": [1.0]}, cv=2)
    search.fit(photos, labels)
    assert search.best_params_["encoder__image_size"] in (32, 64)
    assert search.predict(photos[:2]).shape == (2,)
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert again.predict(photos).tolist() == search.predict(photos).tolist()


# --- training


def few(count: int = 96) -> np.ndarray:
    return load_images("fashion-mini", "test").pixels[:count]


PRETRAIN = {"batch_size": 32, "val_images": 0, "auto": False, "workers": 0}


def test_fit_pretrains_on_an_array(tmp_path):
    images = few()
    encoder = glf.Encoder(method="simclr", epochs=1, options=PRETRAIN, out=tmp_path / "runs")
    with pytest.raises(NotFittedError):
        encoder.transform(images)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    features = encoder.fit_transform(images)
    assert (np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before, (
        "global generators are restored"
    )
    assert features.shape == (96, 256)
    assert encoder.result_["data"]["train"] == 96
    assert encoder.run_ == tmp_path / "runs" / "fit-0"
    assert np.array_equal(glf.load(encoder.run_)(images).numpy(), features)
    assert encoder.fit(images[:64]).run_ == tmp_path / "runs" / "fit-1", "a fit replaces no run"
    dropped = clone(encoder)
    assert not hasattr(dropped, "model_")
    assert dropped.get_params() == encoder.get_params()
    loaded = pickle.loads(pickle.dumps(encoder))
    assert np.array_equal(loaded.transform(images), encoder.transform(images))


def test_a_grid_search_over_settings_of_training():
    images, labels = few(64), load_images("fashion-mini", "test").targets[:64] % 2
    pipeline = make_pipeline(
        glf.Encoder(method="simclr", epochs=1, options=PRETRAIN), LogisticRegression(max_iter=1000)
    )
    search = GridSearchCV(pipeline, {"encoder__method": ["simclr", "vicreg"]}, cv=2, error_score="raise")
    search.fit(images, labels)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_[0].run_ is None, "a temporary run is deleted"


def test_fit_adapts_to_just_these_files(photos, tmp_path):
    chosen = photos[::2]
    encoder = glf.Encoder(
        LITE, adapt=True, epochs=1, image_size=32, method="simclr+lpm", options=QUICK, out=tmp_path / "runs"
    )
    features = encoder.fit(chosen).transform(photos)
    assert features.shape == (24, 1280)
    assert encoder.result_["kind"] == "adapt"
    assert (encoder.result_["data"]["images"], encoder.result_["data"]["val"]) == (12, 4)
    frozen = glf.Encoder(LITE, image_size=32).transform(photos)
    assert not np.allclose(features, frozen, atol=1e-3)
    assert np.array_equal(glf.load(encoder.run_)(photos).numpy(), features)
    listed = (tmp_path / "runs" / "fit-0.glf.images.csv").read_text().splitlines()
    assert listed == ["path", *chosen]


def test_fit_takes_images_of_any_kind(photos, tmp_path):
    """PIL images, contents of files and arrays are written next to the run."""
    opened = [Image.open(path) for path in photos[:8]]
    mixed = [*opened, *(Path(path).read_bytes() for path in photos[8:16]), *np.repeat(few(8), 3, axis=3)]
    encoder = glf.Encoder(method="simclr", epochs=1, image_size=32, out=tmp_path, options={**PRETRAIN, "batch_size": 8})
    encoder.fit(mixed)
    assert encoder.result_["data"]["train"] == 24
    written = sorted((tmp_path / "fit-0.glf.images").iterdir())
    assert len(written) == 24
    with Image.open(written[8]) as one, Image.open(photos[8]) as other:
        assert np.array_equal(glf.load("pixels")(one), glf.load("pixels")(other)), "upright as the file is seen"
    for image in opened:
        image.close()


# --- mistakes


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"adapt": True}, "adapt=True needs an encoder to start from"),
        ({"encoder": "pixels", "epochs": 3}, "epochs only applies if fit trains: set adapt=True, or drop it"),
        ({"encoder": "no/such/run"}, "no backbone at no/such/run"),
        ({"options": {"seed": 1}}, "options has 'seed', which is a setting of its own"),
        ({"options": {"epoch": 1}}, "unknown configuration key 'epoch' - did you mean 'epochs'"),
        ({"method": "simclrr"}, "simclrr"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises((ValueError, OSError), match=message):
        glf.Encoder(**settings).fit(few())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("photos/", "X is one image or folder .*: give a list of images"),
        (np.zeros((4, 784)), r"Reshape your data: X has the shape \(4, 784\)"),
        (np.zeros((28, 28, 3), np.uint8), "Reshape your data"),
        (np.array([["a.jpg", "b.jpg"]]), "give one column of paths"),
        ([], "no images"),
        (["no/such.jpg"], "no/such.jpg"),
    ],
)
def test_what_are_no_samples(given, message):
    with pytest.raises((ValueError, OSError), match=message):
        glf.Encoder("pixels").transform(given)
