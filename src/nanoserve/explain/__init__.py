"""Other engines' start-up logs and metrics: what happened, where memory went, what to change."""
