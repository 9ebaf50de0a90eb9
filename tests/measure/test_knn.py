"""k-NN on real pixels, against scikit-learn and a plain loop."""

import math

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier, NearestNeighbors
from torch import Tensor

from glf.data.images import ImageSet
from glf.data.sources import load_images
from glf.measure.knn import knn_predict, most_similar, neighbours_kept, weighted_knn_predict


def pixels(images: ImageSet, count: int) -> tuple[Tensor, Tensor]:
    x = torch.from_numpy(images.pixels[:count].reshape(count, -1)).float() / 255
    return x, torch.from_numpy(images.targets[:count].copy())


@pytest.fixture(scope="module")
def fashion() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return *pixels(load_images("fashion-mini"), 2000), *pixels(load_images("fashion-mini", "test"), 500)


@pytest.mark.parametrize(
    ("k", "offset", "scale"),
    [(5, 0.0, 1.0), (1, 0.0, 1.0), (20, 0.0, 1.0), (5, 5.0, 0.01)],  # the last: a small cloud far from the origin
)
def test_k_nn_equals_scikit_learns(fashion, k, offset, scale):
    bank, labels, queries, truth = fashion
    bank, queries = bank * scale + offset, queries * scale + offset
    theirs = KNeighborsClassifier(k).fit(bank.double(), labels).predict(queries.double())
    ours = knn_predict(bank, labels, queries, k=k)
    # No ties in distance between the k-th and the next neighbour.
    far = NearestNeighbors(n_neighbors=k + 1).fit(bank.double()).kneighbors(queries.double())[0]
    assert (far[:, k] - far[:, k - 1]).min() > 0
    assert np.array_equal(ours.numpy(), theirs)
    assert (ours == truth).double().mean() > 0.7


def test_a_tie_goes_to_the_smallest_label():
    bank, labels = torch.tensor([[0.0], [1.0], [2.0], [3.0]]), torch.tensor([7, 7, 2, 2])
    queries = torch.tensor([[0.1], [2.9]])
    assert knn_predict(bank, labels, queries, k=4).tolist() == [2, 2]
    assert KNeighborsClassifier(4).fit(bank, labels).predict(queries).tolist() == [2, 2]


def loop(bank: Tensor, labels: Tensor, queries: Tensor, k: int, temperature: float) -> list[int]:
    """Wu et al. 2018: each of the k most similar votes for its class with exp(cos / temperature)."""
    predictions = []
    for query in queries.double():
        cosines = [float(query @ x / (query.norm() * x.norm())) for x in bank.double()]
        nearest = sorted(range(len(bank)), key=lambda i: -cosines[i])[:k]
        votes = dict.fromkeys(range(int(labels.max()) + 1), 0.0)
        for i in nearest:
            votes[int(labels[i])] += math.exp(cosines[i] / temperature)
        predictions.append(max(votes, key=lambda label: votes[label]))
    return predictions


@pytest.mark.parametrize(("k", "temperature"), [(20, 0.07), (20, 0.5), (7, 0.07), (200, 0.02)])
def test_weighted_votes_equal_a_loop(fashion, k, temperature):
    bank, labels, queries, _ = fashion
    bank, labels, queries = bank[:300], labels[:300], queries[:60]
    ours = weighted_knn_predict(bank, labels, queries, k=k, temperature=temperature)
    assert ours.tolist() == loop(bank, labels, queries, k, temperature)


def test_weights_matter_and_lengths_do_not(fashion):
    bank, labels, queries, truth = fashion
    sharp, flat = (weighted_knn_predict(bank, labels, queries, k=200, temperature=t) for t in (0.01, 100.0))
    assert not torch.equal(sharp, flat)
    assert (sharp == truth).double().mean() > (flat == truth).double().mean()
    lengths = torch.rand(2000, 1, generator=torch.Generator().manual_seed(0)) + 0.5
    stretched = weighted_knn_predict(bank * lengths, labels, queries * 3, k=200, temperature=0.01)
    assert (stretched == sharp).double().mean() > 0.99
    tiny = weighted_knn_predict(bank, labels, queries, k=200, temperature=1e-3)  # exp(1000) is beyond float32
    nearest = labels[(queries @ (bank / bank.norm(dim=1, keepdim=True)).T).argmax(1)]
    assert (tiny == nearest).double().mean() > 0.97


@pytest.mark.parametrize("function", [knn_predict, weighted_knn_predict])
@pytest.mark.parametrize("chunk", [1, 7, 100, 499, 500])
def test_the_chunk_size_changes_nothing(fashion, monkeypatch, function, chunk):
    bank, labels, queries, _ = fashion
    whole = function(bank[:200], labels[:200], queries)
    monkeypatch.setattr("glf.measure.knn.MAX_SIMILARITIES", chunk * 200)
    assert torch.equal(function(bank[:200], labels[:200], queries), whole)


@pytest.mark.parametrize("function", [knn_predict, weighted_knn_predict])
@pytest.mark.parametrize("block", [3, 64, 199])
def test_the_block_size_of_the_bank_changes_nothing(fashion, monkeypatch, function, block):
    bank, labels, queries, _ = fashion
    whole = function(bank[:200], labels[:200], queries)
    monkeypatch.setattr("glf.measure.knn.BANK_BLOCK", block)
    assert torch.equal(function(bank[:200], labels[:200], queries), whole)


@pytest.mark.parametrize("function", [knn_predict, weighted_knn_predict])
def test_more_neighbours_than_images_are_refused(function):
    bank, labels = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])
    with pytest.raises(ValueError, match="5 neighbours of 4 images: lower k to at most 4"):
        function(bank, labels, bank, k=5)
    assert function(bank, labels, bank, k=4).shape == (4,)


def test_the_most_similar_equal_scikit_learns(fashion):
    bank, _, queries, _ = fashion
    far, expected = (
        NearestNeighbors(n_neighbors=4, metric="cosine").fit(bank.double()).kneighbors(queries[:50].double())
    )
    similarity, found = most_similar(bank, queries[:50], k=4)
    assert np.array_equal(found.numpy(), expected)
    assert np.allclose(similarity.numpy(), 1 - far, atol=1e-5)


def test_neighbours_kept_equals_a_loop(fashion):
    before = fashion[0][:120].double()
    after = before + 0.1 * torch.randn(before.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def nearest(features, i, k):
        cosine = [float(torch.cosine_similarity(features[i], features[j], dim=0)) for j in range(len(features))]
        return set(sorted((j for j in range(len(features)) if j != i), key=lambda j: -cosine[j])[:k])

    for k in (1, 10):
        found = neighbours_kept(before, after, k)
        expected = [len(nearest(before, i, k) & nearest(after, i, k)) / k for i in range(len(before))]
        assert found.tolist() == pytest.approx(expected)
        assert 0 < found.mean() < 1
    assert torch.equal(neighbours_kept(before, after), found), "ten by default"


def test_all_neighbours_are_kept_by_rotations_and_none_by_their_opposite(fashion):
    x = fashion[0][:100, ::9]
    rotation = torch.linalg.qr(torch.randn(x.shape[1], x.shape[1], generator=torch.Generator().manual_seed(0)))[0]
    assert (neighbours_kept(x, 7 * x @ rotation) == 1).double().mean() > 0.95
    line = torch.tensor([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.01, 1.0]])
    assert neighbours_kept(line, line[[0, 2, 1, 3]], k=1).tolist() == [0, 0, 0, 0]


def test_duplicates_and_few_images_have_neighbours_too():
    same = torch.ones(30, 4)
    assert neighbours_kept(same, same).tolist() == [1.0] * 30
    pair = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert neighbours_kept(pair, pair).tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match="neighbours need at least two images"):
        neighbours_kept(pair[:1], pair[:1])
