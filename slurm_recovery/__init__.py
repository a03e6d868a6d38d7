"""slurm_recovery: failed Slurm jobs are explained, kept off the guilty node and put back in the queue."""
