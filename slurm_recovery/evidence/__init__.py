"""Evidence from files: bounded, as the right user, a gap where it cannot be had."""
