"""VHL and our algorithms in a training loop, or a Flower app, of your own."""

from vhl.dropin.loss import VirtualHomogeneity

__all__ = ["VirtualHomogeneity"]
