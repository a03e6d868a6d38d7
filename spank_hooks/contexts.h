/*
 * The contexts that Slurm loads the plugin in, one file each. Every function gives Slurm 0: a fault of ours is a line
 * in a log, and never a reason for a job to fail. Only an option whose value is not understood is refused, at
 * submission, by its callback.
 */
#ifndef RECOVERY_CONTEXTS_H
#define RECOVERY_CONTEXTS_H

#include <slurm/spank.h>

/* sbatch, salloc, srun: checks what the user says, and carries it to the hooks. */
int submit_init(spank_t spank, int count, char *arguments[]);
int submit_post_opt(spank_t spank, int count, char *arguments[]);

/* slurmstepd: only knows the options, so that it does not wonder at them. */
int stepd_init(spank_t spank);

/* slurmd: says in its log what is wrong in plugstack.conf. */
int slurmd_init(int count, char *arguments[]);

/* Registers all options with this callback. Returns the first error, or ESPANK_SUCCESS. */
spank_err_t register_options(spank_t spank, spank_opt_cb_f callback);

#endif
