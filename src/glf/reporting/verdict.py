"""Verdict on a run or a comparison: the data of the coloured box at the top of its page."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from scipy.stats import binom

from glf.reporting.load import Run
from glf.reporting.study_tables import Delta, deltas

Mood = Literal["good", "fair", "bad"]  # green, neutral, red: classes in page.css
BASELINES = ("pixels", "untrained")
ADAPTED_BASELINES = ("pixels", "frozen")  # the encoder before it was adapted takes the place of the untrained network
HEADLINE_ACCURACIES = ("knn5", "linear", "knn", "logistic")  # the first two that were measured are named
Standing = Literal["above", "below", "level"]


class RunVerdict(NamedTuple):
    """Health of a run, and its first accuracies against every other encoder that was evaluated."""

    mood: Mood
    health: Literal["healthy", "unhealthy", "not examined"]
    accuracies: dict[str, dict[str, Standing]]  # metric -> encoder -> where the run stands
    below: tuple[str, ...] = ()  # further accuracies that are below a reference, as "protocol: reference"


def run_verdict(run: Run) -> RunVerdict:
    """Green if the run is healthy and above its references; amber if it is not above them, red if it is not healthy.

    Above: the first two accuracies are significantly above both references, and no other accuracy is significantly
    below one. An adaptation that was not evaluated is green if its k-NN accuracy on held-out images is significantly
    above that of the frozen encoder.
    """
    findings = run.content.get("doctor")
    keys = [key for key in HEADLINE_ACCURACIES if run.value(key) is not None][:2]
    accuracies = {key: _standings(run, key) for key in keys}
    references = BASELINES if "untrained" in run.encoders else ADAPTED_BASELINES
    below = tuple(_below(run, references, set(keys)))
    if findings:
        return RunVerdict("bad", "unhealthy", accuracies, below)
    better = bool(keys) and all(accuracies[key].get(name) == "above" for key in keys for name in references)
    kept = kept_weights(run)
    if kept is not None:
        better = kept.share > 0 and (better if keys else kept.significant)
    health: Literal["healthy", "not examined"] = "not examined" if findings is None else "healthy"
    return RunVerdict("good" if better and not below and health == "healthy" else "fair", health, accuracies, below)


def _below(run: Run, references: tuple[str, ...], named: set[str]) -> Iterator[str]:
    """Further accuracies that are significantly below a reference."""
    for key in run.evaluation.get("percent", ()):
        if key not in named and run.value(key) is not None:
            standings = _standings(run, key)
            yield from (f"{run.evaluation['protocols'][key]}: {r}" for r in references if standings.get(r) == "below")


def _standings(run: Run, key: str) -> dict[str, Standing]:
    """Above or below each other encoder, or level where the 95 % intervals overlap."""
    ours = run.value(key)
    assert ours is not None
    low, high = run.interval(key) or (ours, ours)
    found: dict[str, Standing] = {}
    for encoder in run.encoders:
        theirs = run.value(key, encoder)
        if encoder != "trained" and theirs is not None:
            other_low, other_high = run.interval(key, encoder) or (theirs, theirs)
            overlap = low <= other_high and other_low <= high
            found[encoder] = "level" if overlap else "above" if ours > theirs else "below"
    return found


class KeptWeights(NamedTuple):
    """The weights that an adaptation has kept, and their accuracy on held-out images, which is None without labels."""

    name: str  # "frozen", "average 0.75", "adapted"
    share: float  # of the adapted weights in the average
    chosen: bool  # False: kept without a choice, by --no-choose
    kept: float  # share of the frozen encoder's neighbours
    accuracy: float | None
    frozen: float | None  # accuracy of the frozen encoder
    images: int  # held out

    @property
    def gain(self) -> float:
        return 0.0 if self.accuracy is None or self.frozen is None else self.accuracy - self.frozen

    @property
    def significant(self) -> bool:
        """Whether the gain is positive and the 95 % intervals of both accuracies do not overlap."""
        if self.accuracy is None or self.frozen is None or not self.images:
            return False
        low, high = (binom.ppf(tail, self.images, of) for tail, of in ((0.025, self.accuracy), (0.975, self.frozen)))
        return bool(low > high)


def kept_weights(run: Run) -> KeptWeights | None:
    """What an adaptation has kept; None for other runs."""
    found = run.adaptation
    if not found:
        return None
    values, frozen = found["candidates"][found["chosen"]], found["candidates"]["frozen"]
    return KeptWeights(
        found["chosen"],
        found["share"],
        found["by"] != "--no-choose",
        values["kept"],
        values.get("knn"),
        frozen.get("knn"),
        run.content.get("data", {}).get("val", 0),
    )


class ComparisonVerdict(NamedTuple):
    """Number of differences from the base, the significant ones, and the largest of these."""

    mood: Mood
    differences: int
    gains: int
    losses: int
    largest: Delta | None


def comparison_verdict(content: dict[str, Any]) -> ComparisonVerdict:
    """Green if there are significant gains and no significant losses, red if it is the other way round."""
    found = deltas(content)
    significant = [one for one in found if one.difference.significant]
    gains = sum(one.difference.mean > 0 for one in significant)
    losses = len(significant) - gains
    mood: Mood = "good" if gains and not losses else "bad" if losses and not gains else "fair"
    largest = max(significant, key=lambda one: abs(one.difference.mean), default=None)
    return ComparisonVerdict(mood, len(found), gains, losses, largest)
