"""Who runs next: requests, blocks and steps as ints. It never sees a tensor."""
