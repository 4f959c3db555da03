"""A run into its folder: resumed, side by side with others, followed by trackers."""

from vhl.session.session import Session

__all__ = ["Session"]
