"""What fits: pure arithmetic, the one place that multiplies layers by bytes."""
