"""Detection and segmentation as a part of the suite."""

import re

from glf.evaluate.case import Case, Figure
from glf.evaluate.detect.run import detect
from glf.nn.backbone import Backbone


def detected(case: Case) -> dict[str, Figure]:
    """AP, AP50 and AP75 of boxes and masks, of the subject itself and of what stands beside it."""
    if not isinstance(case.encoder, Backbone):
        return {}  # there is no detector of pixels
    if case.config.detect.boxes is None:
        if "all" in case.config.suite:
            return {}
        raise ValueError("no annotated images to learn detection from: name them with --boxes")
    place = case.out / "detect" / re.sub(r"[^\w.]+", "-", case.name)
    found = detect(case.encoder.to(case.place), case.config.detect, place, case.console)
    said = found["protocol"]
    return {
        f"{kind}_{key}": Figure(scores[key], f"{key} of {kind} ({said})", {"classes": scores["classes"]}, percent=True)
        for kind, scores in found["rows"].items()
        for key in ("AP", "AP50", "AP75")
    }
