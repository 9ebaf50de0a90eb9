"""Reports: one self-contained HTML page from result.json, metrics.jsonl and artifacts/, never from the data."""
