"""Rules that recognise a problem in the metrics of a run: pure functions, and every threshold with its reason.

Records are the lines of metrics.jsonl, in order. A problem must last: its condition holds in every record of its kind
up to the last. ``ADVICE`` has the usual causes of each problem and what to try.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

Record = Mapping[str, float]
Records = Sequence[Record]

PATIENCE = 5  # consecutive records: single batches may look like anything; 50 steps at the default --log-every
LONG = 20  # consecutive records of a condition that a healthy run may show for a while
SETTLED = 50  # steps until running statistics have forgotten their initial values (0.9^50): earlier probes mean nothing
CONSTANT = 0.05  # spread: unit features with a twentieth of the standard deviation of a uniform cloud are one point
FEW = 1.3  # effective rank: a line and some noise. Untrained transformers have 1.5, healthy batches at least 2.3
SHARE_OF_FULL = 0.01  # of the rank of as many samples of a uniform cloud; healthy runs have at least a tenth
FALLEN = 0.1  # of the rank's own maximum: healthy runs keep at least a sixth of it while they learn
TWINS = 0.8  # most images coincide with another one, and
BETWEEN = 0.15  # few pairs are neither near nor far (a line: 0.28)
USED = 0.2  # of the prototypes that as many uniform draws would hit; healthy runs use two thirds of them
EXPLODED = 100.0  # times the first scale: a step rotates z by a hundredth of what it did
VANISHED = 0.01  # times the first scale
DEAD = 1.2e-7  # share of the gradient that float32 rounding removes when the others are added
DOMINATES = 0.995  # share of the gradient: all others together move z by less than a hundredth of this term
STARVED = 0.3  # data wait: below this, a faster loader gains little
BY_CLASS = {"align/same_class", "align/class_score"}  # supervised terms collapse classes on purpose


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A problem: its name, the step it began at, its usual causes, the evidence, the next thing to try."""

    name: str
    since: int
    why: str
    evidence: str
    advice: str

    def __str__(self) -> str:
        return f"{self.name} since step {self.since}: {self.evidence}. Usual causes: {self.why}. Try: {self.advice}."


def not_finite(records: Records) -> list[Finding]:
    """Find what was non-finite first: z, else a term, else the gradient; unless training has recovered.

    ``bad/<name>`` in a record is the exact step, recorded during training; without it the logged values are used.
    """
    steps = [r for r in records if "loss" in r]
    sound = max((r["step"] for r in steps if not _broken(r)), default=0)
    notes = {key[4:]: int(value) for r in records for key, value in r.items() if key.startswith("bad/")}
    noted = {name: step for name, step in notes.items() if step >= sound}
    if not noted:
        first = next((r for r in steps if r["step"] > sound), {})
        noted = {name: int(first["step"]) for name in _broken(first)}
    if not noted:
        return []
    since = min(noted.values())
    at_once = sorted((name for name, step in noted.items() if step == since), key=_order)
    terms = [name for name in at_once if _order(name) == 1]
    evidence = {
        "z": "first z, the network's output: its weights or running statistics were lost in the step before",
        "gradient": f"first the gradient at z, while every term was finite{_guilty(steps, since)}",
        "features": "first the encoder's features: its weights are finite, but so large that features overflow",
        "weights": "first the weights, by the update of that step, while z and every term were finite",
    }.get(at_once[0], f"first {' and '.join(terms)}{', at once' if len(terms) > 1 else ''}")
    return [_finding("not finite", since, evidence)]


def constant_collapse(records: Records) -> list[Finding]:
    """All embeddings, or all features, are nearly the same."""
    by_probe = _constant(_probes(records), "val/spread", "features", 1)
    return _constant(records, "z/spread", "z", PATIENCE) or by_probe


def _constant(records: Records, key: str, what: str, patience: int) -> list[Finding]:
    tail = _tail(records, key, lambda r: r[key] < CONSTANT)
    if len(tail) < patience:
        return []
    evidence = f"the spread of {what} is {tail[-1][key]:.2g}, below {CONSTANT:g} (1 is a uniform cloud, 0 a point)"
    return [_finding("constant collapse", tail[0]["step"], evidence)]


def cluster_collapse(records: Records) -> list[Finding]:
    """z is concentrated on a few points, or a few prototypes take all images."""
    tail = _tail(records, "z/twins", lambda r: r["z/twins"] > TWINS and r["z/between"] < BETWEEN)
    if len(tail) >= PATIENCE and not BY_CLASS & set(tail[-1]):
        evidence = (
            f"{tail[-1]['z/twins']:.0%} of the images coincide with another one, and {tail[-1]['z/between']:.0%} of the"
            " pairs are neither near nor far"
        )
        return [_finding("cluster collapse", tail[0]["step"], evidence)]
    tail = _tail(records, "prototypes/used", lambda r: r["prototypes/used"] < USED)
    if len(tail) >= PATIENCE:
        evidence = f"{tail[-1]['prototypes/used']:.0%} of the prototypes that a uniform batch would use are used"
        return [_finding("cluster collapse", tail[0]["step"], evidence)]
    return []


def dimensional_collapse(records: Records) -> list[Finding]:
    """z has almost no effective rank; or the features do, or a tenth of their former rank.

    z/rank is unbiased for few samples; val/rank is compared with val/full_rank, the rank of as many uniform samples.
    (z falls from the rank of noise to that of the data in healthy runs too: its maximum says nothing.)
    """
    probes = _probes(records)
    highest = max((r["val/rank"] for r in probes), default=0.0)
    full = max((r.get("val/full_rank", 0.0) for r in probes), default=0.0)
    of_features = max(FEW, FALLEN * highest, SHARE_OF_FULL * full)
    return _flat(records, "z/rank", "z", FEW, PATIENCE) or _flat(probes, "val/rank", "features", of_features, 1)


def _flat(records: Records, key: str, what: str, least: float, patience: int) -> list[Finding]:
    tail = _tail(records, key, lambda r: r[key] < least)
    if len(tail) < patience:
        return []
    evidence = f"the effective rank of {what} is {tail[-1][key]:.2g}, below {least:.2g}"
    return [_finding("dimensional collapse", tail[0]["step"], evidence)]


def collapsed_at_end(records: Records) -> list[Finding]:
    """The last state of a run that has ended, however few its steps are: its features are what is saved.

    Unsettled features may be narrow or flat alone (healthy ones: a spread of 0.08, a rank of 7); it takes both, or z.
    """
    z = {"z/spread": 1.0, "z/rank": math.inf, **next((r for r in reversed(records) if "z/spread" in r), {})}
    features = next((r for r in reversed(records) if "val/spread" in r), None)
    if features is None:
        return []
    narrow, flat = features["val/spread"] < CONSTANT, features["val/rank"] < FEW
    if narrow and (flat or z["z/spread"] < CONSTANT):
        evidence = f"the spread of the features is {features['val/spread']:.2g} at the end, below {CONSTANT:g}"
        return [_finding("constant collapse", features["step"], evidence)]
    if flat and z["z/rank"] < FEW:
        evidence = f"the effective rank of the features is {features['val/rank']:.2g} at the end, below {FEW:g}"
        return [_finding("dimensional collapse", features["step"], evidence)]
    return []


def looks_collapsed(records: Records) -> bool:
    """Whether the last features look collapsed, however early they were measured."""
    last = next((r for r in reversed(records) if "val/spread" in r), {})
    return bool(last) and (last["val/spread"] < CONSTANT or last["val/rank"] < FEW)


def lost_scale(records: Records) -> list[Finding]:
    """z, before normalisation, has grown or shrunk a hundredfold since the first step."""
    first = next((r["z/scale"] for r in records if "z/scale" in r), 0.0)
    tails = {
        "exploding scale": _tail(records, "z/scale", lambda r: r["z/scale"] > EXPLODED * first),
        "vanishing scale": _tail(records, "z/scale", lambda r: r["z/scale"] < VANISHED * first),
    }
    return [
        _finding(name, tail[0]["step"], f"entries of z have magnitude {tail[-1]['z/scale']:.2g}; {first:.2g} at first")
        for name, tail in tails.items()
        if len(tail) >= PATIENCE
    ]


def dead_term(records: Records) -> list[Finding]:
    """Terms without gradient. A term that is zero, as a hinge may be, is dead only if it was never anything else."""
    since = {term: step for term in _terms(records) if (step := _dead_since(records, term)) is not None}
    if not since:
        return []
    return [_finding("dead term", min(since.values()), f"no gradient at z from {' and '.join(since)}")]


def _dead_since(records: Records, term: str) -> float | None:
    share = f"share/{term}"
    tail = _tail(records, share, lambda r: r[share] < DEAD)
    if len(tail) < PATIENCE:
        return None
    silent = all(r[term] == 0 for r in tail)
    never = len(tail) == sum(share in r for r in records) and tail[-1]["epoch"] > tail[0]["epoch"]
    return tail[0]["step"] if never or not silent else None


def dominating_term(records: Records) -> list[Finding]:
    """One of several active terms has nearly all of the gradient, for long. A method with one term is healthy."""
    for term in _terms(records):
        tail = _dominated(records, f"share/{term}")
        if len(tail) >= LONG:
            evidence = f"{term} has {tail[-1][f'share/{term}']:.1%} of the gradient at z"
            return [_finding("dominating term", tail[0]["step"], evidence)]
    return []


def _dominated(records: Records, share: str) -> Records:
    return _tail(records, share, lambda r: r[share] > DOMINATES and _alive(r) > 1)


def starvation(records: Records) -> list[Finding]:
    """Training waits for data."""
    tail = _tail(records, "data_wait", lambda r: r["data_wait"] > STARVED)
    if len(tail) < PATIENCE:
        return []
    evidence = f"{tail[-1]['data_wait']:.0%} of the time is spent waiting for data"
    return [_finding("data starvation", tail[0]["step"], evidence)]


def _tail(records: Records, key: str, condition: Callable[[Record], bool]) -> Records:
    """Return the records at the end, among those with the key, that all satisfy the condition."""
    return list(takewhile(condition, (r for r in reversed(records) if key in r)))[::-1]


def _probes(records: Records) -> Records:
    return [r for r in records if "val/rank" in r and r["step"] >= SETTLED]


def _terms(records: Records) -> list[str]:
    """Return the terms of the last logged step."""
    last = next((r for r in reversed(records) if "loss" in r), {})
    return [key for key in last if key.startswith(("align/", "constrain/"))]


def _alive(record: Record) -> int:
    return sum(value >= DEAD for key, value in record.items() if key.startswith("share/"))


def _broken(record: Record) -> list[str]:
    """Return the non-finite terms of a logged step."""
    return [term for term in _terms([record]) if not math.isfinite(record[term])]


def _order(name: str) -> int:
    return {"z": 0, "gradient": 2, "weights": 3, "features": 4}.get(name, 1)


def _guilty(steps: Records, since: int) -> str:
    """Name the terms with a non-finite gradient, if that step was logged."""
    shares = [key for r in steps if r["step"] == since for key in r if key.startswith("share/")]
    guilty = [key[6:] for r in steps if r["step"] == since for key in shares if not math.isfinite(r[key])]
    return f": that of {' and '.join(guilty)}" if guilty else ""


def _finding(name: str, since: float, evidence: str) -> Finding:
    why, advice = ADVICE[name]
    return Finding(name=name, since=int(since), why=why, evidence=evidence, advice=advice)


class Advice(NamedTuple):
    """The usual causes of a problem, and the next thing to try."""

    why: str
    advice: str


ADVICE = {
    "not finite": Advice(
        "a learning rate that is too high, half precision that overflows, or a root or quotient at zero in a term",
        "a lower --lr and a longer --warmup-epochs; with 16-mixed, --precision bf16-mixed or 32-true; --log-every 1 to"
        " see the term's gradient; then --overwrite, because non-finite weights cannot be trained further",
    ),
    "constant collapse": Advice(
        "no term that keeps images apart, or too little weight on it; a learning rate that is too high; an EMA teacher"
        " that follows too fast; a DCM weight that dominates the other terms",
        "a method with a constraining part, or one added to it (--method NAME+isotropic, NAME+sphere; see glf methods);"
        " a lower --lr; with an EMA teacher, --ema-momentum 0.99 1.0; with dcm or adc, a lower --nu",
    ),
    "cluster collapse": Advice(
        "fewer prototypes or clusters than kinds of images, prototypes that are trained too early, or sharp assignments"
        " without equipartition",
        "other --prototypes (at most as many as images in a batch, many more than kinds of images) or --options"
        " clusters N; a larger --batch-size or --options queue N; a lower --lr",
    ),
    "dimensional collapse": Advice(
        "a constraint that prevents a point but not a line (variance without covariance, DCM alone), augmentations that"
        " remove what distinguishes images, or a learning rate that is too high",
        "more weight on decorrelation (--options covariance 1 with vicreg, redundancy 0.0051 with barlow_twins) or"
        " --method NAME+lpm; weaker --augment gentle; a lower --lr",
    ),
    "exploding scale": Advice(
        "a learning rate that is too high, or a loss that ignores norms with too little weight decay",
        "a lower --lr, a longer --warmup-epochs, more --weight-decay; with ADC, --covariance sphere",
    ),
    "vanishing scale": Advice(
        "alignment of unnormalised embeddings without a variance constraint, or too much weight decay",
        "less --weight-decay, more weight on the term that keeps images apart (--options variance 25 with vicreg), a"
        " lower --lr",
    ),
    "dead term": Advice(
        "a weight of zero, an input without gradient, a hinge that was never active, or ADC neighbour distributions"
        " that are uniform or one-hot",
        "its weight (--nu for dcm, --upsilon for lpm, --options for the method's own; see glf methods NAME); for dcm"
        " and lpm --reading calibrated and --effective-dim 8, and check entropy/dat; or a method without it",
    ),
    "dominating term": Advice(
        "badly balanced weights, or a term that diverges",
        "less weight on it (--nu for dcm, --upsilon for lpm, --options for the method's own; see glf methods NAME);"
        " with mec, --options distortion 512 warmup 0",
    ),
    "data starvation": Advice(
        "too few workers, image files decoded at every epoch, or a slow disk",
        "more --workers, --store pack, --colours fused, a smaller --image-size, or a copy of the data on a faster disk",
    ),
}
