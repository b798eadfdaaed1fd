"""Our model against transformers: tiny random weights, float32, CPU."""
