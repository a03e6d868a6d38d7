"""The table of cases: each a job, what befalls it, and how a careful administrator would judge it."""

from tests.reallogs.cases_others import JAX_CASES, MPI_CASES, TRAINER_CASES
from tests.reallogs.cases_torch import TORCH_CASES

CASES = TORCH_CASES + TRAINER_CASES + MPI_CASES + JAX_CASES
