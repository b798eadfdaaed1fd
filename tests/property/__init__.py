"""What must hold for every input, checked with hypothesis."""
