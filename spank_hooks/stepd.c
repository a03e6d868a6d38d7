/*
 * slurmstepd. The options of a srun are sent to it, and it warns in the job's output of one that nobody registered
 * (22.05 to 26.05). Nothing is done with them: a job's say is the controller's matter.
 */
#include "contexts.h"

static int ignore(int option, const char *value, int remote)
{
	(void)option;
	(void)value;
	(void)remote;
	return 0;
}

int stepd_init(spank_t spank)
{
	spank_err_t error = register_options(spank, ignore);

	if (error != ESPANK_SUCCESS)
		slurm_debug("slurm_recovery: options not registered: %s", spank_strerror(error));
	return 0;
}
