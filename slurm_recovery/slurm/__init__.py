"""What slurm_recovery asks of Slurm: a port, and the adapters behind it."""
