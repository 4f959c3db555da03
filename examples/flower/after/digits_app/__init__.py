"""A Flower app: sites with different handwritten digits train one network."""
