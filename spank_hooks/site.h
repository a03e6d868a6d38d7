/*
 * What the site allows: the arguments of the plugin's line in plugstack.conf, and the holding of a wish against them.
 * Pure: no Slurm, no allocation, no state. What counts is recovery.conf, which the controller holds a job to; this is
 * there to tell a user of it at submission.
 */
#ifndef RECOVERY_SITE_H
#define RECOVERY_SITE_H

#include "options.h"

struct site {
	int max_mode;          /* a rank of mode_rank() */
	unsigned max_requeues;
	unsigned job_options;  /* bit 1 << option: a job may choose it */
};

#define COMPLAINT_SIZE 256

/* Told once for each argument that is not understood, and ignored. */
typedef void (*complain_fn)(const char *complaint);

struct site read_site(int count, char *const arguments[], complain_fn complain);

enum verdict { ALLOWED, LOWERED, DROPPED };

/* Lowers `value` in its place; `told` says why it is lowered or dropped. `value` must be valid for the option. */
enum verdict hold_against(const struct site *site, enum option option, char value[VALUE_SIZE],
			  char told[COMPLAINT_SIZE]);

#endif
