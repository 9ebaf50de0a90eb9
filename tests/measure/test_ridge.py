"""Ridge regression as a classifier."""

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from glf.measure.ridge import ridge_predict


def blobs(count: int, classes: int = 4, dim: int = 6, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=torch.Generator().manual_seed(9))
    labels = torch.randint(classes, (count,), generator=generator)
    return 5 + 3 * (centres[labels] + 0.8 * torch.randn(count, dim, generator=generator)), labels


def test_predictions_are_those_of_scikit_learns_ridge_on_one_hot_labels() -> None:
    (train, labels), (queries, truth) = blobs(200), blobs(300, seed=1)
    scaler = StandardScaler().fit(train.numpy())
    model = Ridge(alpha=0.1 * len(train)).fit(scaler.transform(train.numpy()), np.eye(4)[labels.numpy()])
    expected = model.predict(scaler.transform(queries.numpy())).argmax(1)
    found = ridge_predict(train, labels, queries, strength=0.1)
    assert found.tolist() == expected.tolist()
    assert (found == truth).double().mean() > 0.7


def test_neither_scale_nor_shift_nor_constant_features_matter() -> None:
    (train, labels), (queries, _) = blobs(200), blobs(100, seed=1)
    expected = ridge_predict(train, labels, queries)

    def changed(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([1e3 * x - 7, torch.full((len(x), 2), 3.0)], 1)

    assert ridge_predict(changed(train), labels, changed(queries)).tolist() == expected.tolist()


def test_more_features_than_images_and_classes_without_images() -> None:
    """A class of the queries that the bank lacks is never predicted; the map is defined for few images."""
    train, labels = torch.randn(3, 10, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2])
    assert ridge_predict(train, labels, train).tolist() == [0, 2, 2]
    assert set(ridge_predict(train, labels, torch.randn(50, 10)).tolist()) <= {0, 2}
