"""Use of a trained backbone on a folder of images: embeddings, search, outliers and near-duplicates."""
