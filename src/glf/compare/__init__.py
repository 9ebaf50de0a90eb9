"""Methods x variants x data x seeds under one protocol, paired by seed; and stored results, judged again."""
