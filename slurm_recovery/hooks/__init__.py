"""The hooks' own island: what runs inside Slurm's hooks, and the spool through which it speaks to the rest."""
