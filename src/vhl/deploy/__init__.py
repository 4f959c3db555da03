"""The same methods on real machines, as a Flower app: https://flower.ai."""
