"""What a private cluster may raise.

OSError from the file system, and TimeoutExpired from a command, come through as they are.
"""


class ClusterUnavailable(RuntimeError):
    """No private cluster can be had on this machine; the message is one line: what, and what to do."""


class ClusterError(RuntimeError):
    """The cluster did not do what was asked in time; the message holds squeue's answer and the end of the log."""
