/* slurmd. Its log is where an administrator looks for what is wrong in plugstack.conf. */
#include "contexts.h"
#include "site.h"

static void log_it(const char *complaint)
{
	slurm_error("%s", complaint);
}

int slurmd_init(int count, char *arguments[])
{
	(void)read_site(count, arguments, log_it);
	return 0;
}
