"""The rehearsal: a harmless job of our own that fails on purpose, and what must become of it, step by step.

Owns the drills (drills.py), their job (job.py), what the policy makes of a failure (expected.py), what is looked at
(view.py, steps.py) and the walk (rehearsal.py). Decides nothing and judges nothing: the hooks and workers of the site
do, as for any other job.
"""
