"""Aligning parts: terms that pull the views of an image together."""
