from functools import partial

import torch

import reference
from glf.align.supervised import InstanceScore, class_score, same_class
from glf.constrain.contrast import InstancePartition, smoothed_partition
from glf.types import Embeddings
from reference import draw, draw_fields


def test_same_class():
    target = torch.tensor([0, 1, 0, 1, 1, 2])

    def loops(z, temperature):
        total = 0
        for a in range(len(z)):
            mates = [b for b in range(len(z)) if b != a and target[a] == target[b]]
            total = total - sum(reference.cos(z[a], z[b]) for b in mates) / max(1, len(mates)) / temperature
        return total / len(z)

    ours = partial(same_class, target=target, temperature=0.2)
    reference.check(ours, partial(loops, temperature=0.2), draw(6, 3))


def test_class_score():
    target = torch.tensor([2, 0, 1])
    loops = lambda scores: -reference.mean(row[t] for row, t in zip(scores, target, strict=True))  # noqa: E731
    reference.check(lambda scores: class_score(scores, target), loops, draw(3, 4))


def test_smoothed_partition():
    def loops(scores):
        rows = [sum(s.exp() for s in row).log() - 0.3 * reference.mean(row) for row in scores]
        return reference.mean(rows)

    reference.check(lambda scores: smoothed_partition(scores, 0.3), loops, draw(3, 4))


def test_diet_takes_one_view():
    """It compares no views: its parts add up to the smoothed cross-entropy of each."""
    fields = draw_fields(views=1)
    e = Embeddings(**{name: fields[name] for name in ("z", "instance_scores", "instance")})
    total = InstanceScore(0.8)(e) + InstancePartition(0.8)(e)
    expected = reference.diet(fields["instance_scores"], fields["instance"], 0.8)
    torch.testing.assert_close(total, expected, rtol=1e-12, atol=0)
