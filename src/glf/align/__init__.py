"""The aligning parts: what pulls two views of one image together."""
