"""A run in a few sentences: is it well, and is what it has learnt better than nothing?"""

from typing import Literal

from glf.reporting.load import Run

Mood = Literal["good", "fair", "bad"]
WORDS = {"pixels": "raw pixels", "untrained": "the untrained network"}
CHIEF = ("knn5", "linear", "knn", "logistic")  # the accuracies that are named, as far as they are there
_PLAIN = {"knn5": "5-nn", "linear": "The linear probe", "knn": "Weighted kNN", "logistic": "The logistic probe"}


def verdict(run: Run) -> tuple[Mood, str, list[str]]:
    """How it is in all, in one word or two, and sentences that say why."""
    findings = run.content.get("doctor")
    sentences = [_accuracy(run, key) for key in CHIEF if run.value(key) is not None][:2]
    if findings:
        names = ", ".join(f"{one['name']} since step {one['since']}" for one in findings)
        return "bad", "Sick", [f"The doctor finds {names}.", *sentences]
    health = "Healthy" if findings is not None else "Not examined"
    if not sentences:
        why = "Judged without labels." if run.evaluation else "Not judged yet: glf evaluate says how good it is."
        return "fair", health, [why]
    return ("good" if _learnt(run) else "fair"), health, sentences


def _learnt(run: Run) -> bool:
    """Whether nothing that takes no training is better, and the untrained network is worse, by the first accuracy."""
    key = next(key for key in CHIEF if run.value(key) is not None)
    return _standing(run, key, "untrained") in ("above", None) and _standing(run, key, "pixels") != "below"


def _accuracy(run: Run, key: str) -> str:
    value = run.value(key)
    assert value is not None
    interval = run.interval(key)
    text = f"{_PLAIN[key]} reaches {100 * value:.1f} %"
    text += f" [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]" if interval else ""
    parts = []
    for column in run.evaluation["rows"]:
        other, standing = run.value(key, column), _standing(run, key, column)
        if column == "trained" or other is None:
            continue
        name, points = WORDS.get(column, column), abs(100 * (value - other))
        if standing == "level":
            parts.append(f"not told apart from {name} ({100 * other:.1f} %)")
        else:
            parts.append(f"{points:.1f} points {standing} {name} ({100 * other:.1f} %)")
    return f"{text}: {', '.join(parts)}." if parts else f"{text}."


def _standing(run: Run, key: str, column: str) -> Literal["above", "below", "level"] | None:
    """Above or below another column, or level where the intervals meet; None where there is nothing to compare."""
    ours, theirs = run.value(key), run.value(key, column)
    if ours is None or theirs is None:
        return None
    low, high = run.interval(key) or (ours, ours)
    other_low, other_high = run.interval(key, column) or (theirs, theirs)
    if low <= other_high and other_low <= high:
        return "level"
    return "above" if ours > theirs else "below"
