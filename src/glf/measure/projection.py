"""Rows of features as points of a plane, to look at."""

import numpy as np

TSNE_IMAGES = 5_000  # a minute on one core; t-SNE's time grows faster than the images
FIT_IMAGES = 50_000  # principal components are fitted on at most so many
COMPONENTS = 50  # that t-SNE starts from: distances survive, and most of the time does not
BLOCK = 8_192


def project_2d(rows: np.ndarray) -> tuple[np.ndarray, str]:
    """float32 (image, 2), and the method's name: neighbours stay together up to 5,000 images, directions beyond."""
    from sklearn.decomposition import PCA

    count = len(rows)
    if count < 3:
        return np.zeros((count, 2), np.float32), "nothing: three images are the least"
    tsne = 10 <= count <= TSNE_IMAGES
    some = np.sort(np.random.default_rng(0).permutation(count)[:FIT_IMAGES])
    kept = min(COMPONENTS if tsne else 2, count, rows.shape[1])
    components = PCA(kept, random_state=0).fit(np.asarray(rows[some]))
    parts = [components.transform(np.asarray(rows[at : at + BLOCK])) for at in range(0, count, BLOCK)]
    points = np.concatenate(parts)
    if not tsne:
        flat = np.zeros((count, 2), np.float32)
        flat[:, :kept] = points
        return flat, "principal components"
    from sklearn.manifold import TSNE

    embedding = TSNE(perplexity=min(30, (count - 1) / 3), init="pca", random_state=0).fit_transform(points)
    return np.asarray(embedding, np.float32), "t-SNE"
