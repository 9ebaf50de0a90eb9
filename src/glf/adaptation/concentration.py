"""What the frozen features say about the gain of an adaptation, with its uncertainty.

In a public benchmark of continued pretraining (four encoders, 15 sets, no term that preserves neighbourhoods), encoders
whose features of a set were concentrated gained, and those with spread features lost. Concentration is the uniformity
of Wang and Isola: the logarithm of the mean of exp(-2 |x - y|^2) over pairs of unit features, 0 if all are alike.
"""

CONCENTRATED, SPREAD = (
    -2.3,
    -3.0,
)  # of DINOv3's 15 sets, all 8 above the first gained or stayed; 5 of 7 below the second lost


def outlook(uniformity: float) -> str:
    """One line about the frozen features.

    >>> outlook(-1.5)[:78]
    'uniformity -1.50: concentrated; all 8 such sets of a public benchmark gained o'
    """
    if uniformity > CONCENTRATED:
        known = "concentrated; all 8 such sets of a public benchmark gained or stayed"
    elif uniformity <= SPREAD:
        known = "spread out; 5 of 7 such sets of a public benchmark lost"
    else:
        known = "neither concentrated nor spread out; a public benchmark says nothing about such sets"
    return f"uniformity {uniformity:.2f}: {known} (15 sets, no preserving term)"
