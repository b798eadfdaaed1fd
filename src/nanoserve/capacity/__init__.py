"""What any model takes on any GPU under any engine: plans, comparisons, searches, remedies."""
