"""Scripts that make golden files, run by hand."""
