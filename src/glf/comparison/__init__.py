"""Comparisons of methods, variants, data sets and seeds, paired by seed; and checks of stored results."""
