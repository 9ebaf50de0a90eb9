"""Projection of features to two dimensions, for pictures: PCA, then t-SNE if there are few images."""

import numpy as np
from jaxtyping import Float

TSNE_IMAGES = 5_000  # images up to which t-SNE is used, which takes a minute on one core and grows faster than linearly
FIT_IMAGES = 50_000  # images on which principal components are fitted, at most
COMPONENTS = 50  # principal components before t-SNE: they keep the distances and save most of the time
BLOCK = 8_192


def project_2d(features: Float[np.ndarray, "image feature"]) -> tuple[Float[np.ndarray, "image 2"], str]:
    """Return two coordinates per image and the name of the method: t-SNE for 10 to 5,000 images, otherwise PCA."""
    count, width = features.shape
    if count < 3:
        return np.zeros((count, 2), np.float32), "nothing: it takes at least three images"
    if 10 <= count <= TSNE_IMAGES:
        return tsne(pca(features, min(COMPONENTS, count, width), fit_images=FIT_IMAGES)), "t-SNE"
    flat = np.zeros((count, 2), np.float32)
    flat[:, : min(2, width)] = pca(features, min(2, width), fit_images=FIT_IMAGES)
    return flat, "principal components"


def pca(
    features: Float[np.ndarray, "image feature"], components: int, *, fit_images: int | None = None
) -> Float[np.ndarray, "image {components}"]:
    """Return principal components of all features.

    With ``fit_images``, they are fitted on at most that many images and computed block by block, so that memory-mapped
    features need not fit in memory.
    """
    from sklearn.decomposition import PCA

    model = PCA(components, random_state=0)
    if fit_images is None:
        reduced: np.ndarray = model.fit_transform(features)
        return reduced
    some = np.sort(np.random.default_rng(0).permutation(len(features))[:fit_images])
    model.fit(np.asarray(features[some]))
    blocks = (features[at : at + BLOCK] for at in range(0, len(features), BLOCK))
    return np.concatenate([model.transform(np.asarray(block)) for block in blocks])


def tsne(points: Float[np.ndarray, "image component"]) -> Float[np.ndarray, "image 2"]:
    """Return the t-SNE of at least five points."""
    from sklearn.manifold import TSNE

    perplexity = min(30, (len(points) - 1) / 3)
    return np.asarray(TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(points), np.float32)
