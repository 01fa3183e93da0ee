"""Training runs under Lightning, Composer and plain PyTorch, and what they should have trained."""
