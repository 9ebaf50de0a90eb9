"""The constraining parts: what the embeddings of different images are asked to be together."""
