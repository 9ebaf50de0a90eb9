"""Two-dimensional projections: which method for how many images, and the numbers of scikit-learn."""

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from glf.measure.projection import pca, project_2d, tsne


def random_features(count: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, width)).astype(np.float32)


@pytest.mark.parametrize("count", [1, 2, 3, 9, 10, 40])
def test_few_and_many_images(monkeypatch, count):
    features = random_features(count, 5)
    points, method = project_2d(features)
    assert points.shape == (count, 2)
    assert np.isfinite(points).all()
    assert method.startswith("nothing" if count < 3 else "principal" if count < 10 else "t-SNE")
    monkeypatch.setattr("glf.measure.projection.TSNE_IMAGES", 20)
    assert project_2d(features)[1] != "t-SNE" or count == 10


def test_a_single_feature():
    points, _ = project_2d(random_features(5, 1))
    assert points[:, 0].std() > 0
    assert (points[:, 1] == 0).all()


def test_principal_components_are_those_of_scikit_learn(monkeypatch):
    monkeypatch.setattr("glf.measure.projection.TSNE_IMAGES", 5)
    monkeypatch.setattr("glf.measure.projection.BLOCK", 7)
    features = random_features(50, 6)
    expected = PCA(2).fit_transform(features)
    np.testing.assert_allclose(np.abs(project_2d(features)[0]), np.abs(expected), rtol=1e-3, atol=1e-4)
    assert np.array_equal(pca(features, 2), PCA(2, random_state=0).fit_transform(features)), "to the last bit"


@pytest.mark.parametrize("count", [5, 60])
def test_tsne_is_that_of_scikit_learn(count):
    points = random_features(count, 6)
    model = TSNE(init="pca", perplexity=min(30.0, (count - 1) / 3), random_state=0)
    assert np.array_equal(tsne(points), model.fit_transform(points)), "to the last bit"
