"""What each sickness usually comes from, and what to try next, in the words of the command line."""

from typing import NamedTuple


class Remedy(NamedTuple):
    """The usual causes, and the next thing to try."""

    why: str
    advice: str


REMEDIES = {
    "not finite": Remedy(
        "a learning rate that is too high, half precision that overflows, or a root or quotient at zero in a term",
        "a lower --lr and a longer --warmup-epochs; with 16-mixed, --precision bf16-mixed or 32-true; --log-every 1 to"
        " see the term's gradient; then --overwrite, for what is not finite cannot be trained further",
    ),
    "constant collapse": Remedy(
        "nothing that keeps images apart or too little weight on it, a learning rate that is too high, a teacher that"
        " follows too fast, DCM with so much weight that it outweighs the others",
        "a method with a constraining part, or one added to it (--method NAME+isotropic, NAME+sphere; see glf methods);"
        " a lower --lr; with a teacher, --momentum 0.99 1.0; with dcm or adc, a lower --nu",
    ),
    "cluster collapse": Remedy(
        "fewer prototypes or clusters than the data have kinds of images, prototypes that learn too early, or sharp"
        " assignments without equal shares",
        "other --prototypes (at most as many as images in a batch, many more than kinds of images) or --options"
        " clusters N; a larger --batch-size or --options queue N; a lower --lr",
    ),
    "dimensional collapse": Remedy(
        "a constraint that forbids a point but not a line (a variance without a covariance, DCM alone), augmentations"
        " stronger than what tells images apart, or a learning rate that is too high",
        "more weight on decorrelation (--options covariance 1 with vicreg, redundancy 0.0051 with barlow_twins) or"
        " --method NAME+lpm; weaker --views gentle; a lower --lr",
    ),
    "exploding scale": Remedy(
        "a learning rate that is too high, or a loss that does not see lengths and too little weight decay",
        "a lower --lr, a longer --warmup-epochs, more --weight-decay; with ADC, --covariance sphere",
    ),
    "vanishing scale": Remedy(
        "an alignment of raw distances without a constraint on variance, or too much weight decay",
        "less --weight-decay, more weight on what keeps images apart (--options variance 25 with vicreg), a lower --lr",
    ),
    "dead term": Remedy(
        "a weight of zero, an input without gradient, a hinge that was never active, or rows of ADC that are flat or"
        " one-hot",
        "its weight (--nu for dcm, --upsilon for lpm, --options for the method's own; see glf methods NAME); for dcm"
        " and lpm --reading calibrated and --effective-dim 8, and a look at entropy/dat; or a method without it",
    ),
    "dominating term": Remedy(
        "weights that do not suit each other, or a term whose value runs away",
        "less weight on it (--nu for dcm, --upsilon for lpm, --options for the method's own; see glf methods NAME);"
        " with mec, --options distortion 512 warmup 0",
    ),
    "data starvation": Remedy(
        "too few workers, files that are decoded at every epoch, or a slow disk",
        "more --workers, --store pack, --colours fused, a smaller --image-size, or a copy of the data on a faster disk",
    ),
}
