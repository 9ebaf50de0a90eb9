"""Parts of scripts/fuzz.py."""
