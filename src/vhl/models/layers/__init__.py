"""What our networks are made of: normalisation, with kernels of its own, and their common shape."""
