/* What Slurm looks for in the plugin, handed on to the file of its context. */
#include "contexts.h"
#include "options.h"

SPANK_PLUGIN(slurm_recovery, 1)

int slurm_spank_init(spank_t spank, int count, char *arguments[])
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		return submit_init(spank, count, arguments);
	case S_CTX_REMOTE:
		return stepd_init(spank);
	case S_CTX_SLURMD:
		return slurmd_init(count, arguments);
	default:
		return 0;
	}
}

int slurm_spank_init_post_opt(spank_t spank, int count, char *arguments[])
{
	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		return submit_post_opt(spank, count, arguments);
	default:
		return 0;
	}
}

spank_err_t register_options(spank_t spank, spank_opt_cb_f callback)
{
	spank_err_t first = ESPANK_SUCCESS;

	for (int option = 0; option < OPTION_COUNT; option++) {
		const struct option_row *row = &option_rows[option];
		/* Slurm copies it, and its texts. */
		struct spank_option slurms = {
			.name = (char *)row->flag,
			.arginfo = (char *)row->arginfo,
			.usage = (char *)row->usage,
			.has_arg = 1,
			.val = option,
			.cb = callback,
		};
		spank_err_t error = spank_option_register(spank, &slurms);

		if (first == ESPANK_SUCCESS)
			first = error;
	}
	return first;
}
