"""What a model is: shapes and files read from disk, no arithmetic on memory and no tensors."""
