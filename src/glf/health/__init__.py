"""The doctor: rules that recognise problems of a run in its metrics, and glf doctor. No torch here."""
