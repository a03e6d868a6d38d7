/*
 * sbatch, salloc and srun. Owns what the user said, from the callbacks until it is carried.
 *
 * Of a job of several components Slurm (22.05 to 26.05) calls init once and post_opt for each of them, in one process:
 * what was said of one holds for those after it, until they say otherwise.
 */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "contexts.h"
#include "options.h"
#include "site.h"

static struct {
	bool is_said;
	bool is_told; /* of the value as it stands the user has been told what the site makes of it */
	char value[VALUE_SIZE];
} said[OPTION_COUNT];

/* Whether this is a srun in a job that is there already: that job's say was said, and a step must not fail of it. */
static bool starts_a_step(void)
{
	const char *job = getenv("SLURM_JOB_ID");

	return spank_context() == S_CTX_LOCAL && job && *job;
}

static int refuse(const struct option_row *row, const char *value)
{
	char shown[SHOWN_SIZE];

	show_value(value, shown);
	if (starts_a_step()) {
		slurm_spank_log("slurm_recovery: --%s=%s: %s; ignored, as this srun starts a step of a job", row->flag,
				shown, row->hint);
		return 0;
	}
	slurm_error("slurm_recovery: --%s=%s: %s", row->flag, shown, row->hint);
	return -1;
}

static int take(int option, const char *value, int remote)
{
	if (remote || option < 0 || option >= OPTION_COUNT)
		return 0;
	if (!value)
		value = "";
	if (!option_rows[option].is_valid(value))
		return refuse(&option_rows[option], value);
	if (!said[option].is_said || strcmp(said[option].value, value) != 0)
		said[option].is_told = false;
	snprintf(said[option].value, VALUE_SIZE, "%s", value);
	said[option].is_said = true;
	return 0;
}

static void log_quietly(const char *complaint)
{
	slurm_verbose("%s", complaint);
}

int submit_init(spank_t spank, int count, char *arguments[])
{
	spank_err_t error = register_options(spank, take);

	(void)count;
	(void)arguments;
	if (error != ESPANK_SUCCESS)
		slurm_spank_log("slurm_recovery: not all of its options can be used: %s", spank_strerror(error));
	return 0;
}

/* Makes the variable be what was said and is allowed, or not be there. */
static void carry(spank_t spank, const struct option_row *row, const char *value)
{
	spank_err_t error = value ? spank_job_control_setenv(spank, row->variable, value, 1)
				  : spank_job_control_unsetenv(spank, row->variable);

	if (error != ESPANK_SUCCESS && value)
		slurm_spank_log("slurm_recovery: --%s could not be passed on, the job goes without it: %s", row->flag,
				spank_strerror(error));
}

static void carry_what_is_allowed(spank_t spank, const struct site *site, enum option option)
{
	char value[VALUE_SIZE], told[COMPLAINT_SIZE];
	enum verdict verdict;

	if (!said[option].is_said) {
		carry(spank, &option_rows[option], NULL);
		return;
	}
	memcpy(value, said[option].value, VALUE_SIZE);
	verdict = hold_against(site, option, value, told);
	if (verdict != ALLOWED && !said[option].is_told)
		slurm_spank_log("%s", told);
	said[option].is_told = true;
	carry(spank, &option_rows[option], verdict == DROPPED ? NULL : value);
}

/*
 * Without PrologFlags=Alloc a node's Prolog runs when the first step comes there, with the step's job control
 * environment. sbatch and salloc leave the job's in SLURM_SPANK_..., and srun (22.05 to 26.05) reads that and forgets
 * it again before post_opt.
 */
static void carry_what_the_job_said(spank_t spank, const struct option_row *row)
{
	char name[64];
	const char *value;

	snprintf(name, sizeof(name), "SLURM_SPANK_%s", row->variable);
	value = getenv(name);
	carry(spank, row, value && row->is_valid(value) ? value : NULL);
}

int submit_post_opt(spank_t spank, int count, char *arguments[])
{
	struct site site;

	if (starts_a_step()) {
		for (int option = 0; option < OPTION_COUNT; option++)
			carry_what_the_job_said(spank, &option_rows[option]);
		return 0;
	}
	site = read_site(count, arguments, log_quietly);
	for (int option = 0; option < OPTION_COUNT; option++)
		carry_what_is_allowed(spank, &site, (enum option)option);
	return 0;
}
