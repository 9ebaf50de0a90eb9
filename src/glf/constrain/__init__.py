"""Constraining parts: terms and transforms on the joint distribution of a batch, which prevent collapse."""
