"""Measures of features: pure functions that evaluation and the online probe of training share."""
