"""Everything but the backbone costs next to nothing: measured side by side, in one run. See __main__.py."""
