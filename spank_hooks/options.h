/*
 * The options that a job's owner has: their names, their grammar, what they are called where.
 * Pure: no Slurm, no allocation, no state. The other reader of the same grammar is slurm_recovery/job_options.py.
 */
#ifndef RECOVERY_OPTIONS_H
#define RECOVERY_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

enum option {
	OPTION_MODE,
	OPTION_CHECKPOINT,
	OPTION_MAX_REQUEUES,
	OPTION_LOG,
	OPTION_MIN_NODES,
	OPTION_COUNT
};

#define VALUE_SIZE 4096 /* PATH_MAX of Linux, with the NUL */
#define MOST_REQUEUES 1000u
#define MOST_NODES 1000000u

struct option_row {
	const char *word;     /* in job_options=, as in JobOptions of recovery.conf */
	const char *flag;     /* without its -- */
	const char *variable; /* Slurm puts SPANK_ before it */
	const char *arginfo;
	const char *usage;
	const char *hint; /* to one whose value is not understood */
	bool (*is_valid)(const char *value);
};

extern const struct option_row option_rows[OPTION_COUNT];

/* What a mode may do: 0 off, 1 observe, 2 act; -1 is none. In any case of letters. */
int mode_rank(const char *word);
/* The word of a rank from 0 to 2. */
const char *mode_word(int rank);

/* Reads `length` decimal digits, seven at most, as a number up to `most`. */
bool read_number(const char *digits, size_t length, unsigned most, unsigned *number);

#define SHOWN_SIZE 84

/* A value as a message shows it: one line, 80 bytes of it. Returns `shown`. */
const char *show_value(const char *value, char shown[SHOWN_SIZE]);

#endif
