"""The one exception that speaks to people."""


class VHLError(Exception):
    """Something the user can put right; its message is one sentence: what is wrong, where, what to do.

    The command line prints the message alone; anything else that escapes is a bug and keeps its traceback.
    """
