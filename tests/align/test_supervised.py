from functools import partial

import torch

import reference
from glf.align.supervised import class_score, same_class
from reference import draw


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
