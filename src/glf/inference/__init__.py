"""A trained backbone at work on a folder of images: rows of features, neighbours, outliers and near-duplicates."""
