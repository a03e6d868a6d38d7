#include "site.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#define EVERY_OPTION ((1u << OPTION_COUNT) - 1)

static void complain_of(complain_fn complain, const char *argument, const char *hint)
{
	char shown[SHOWN_SIZE], text[COMPLAINT_SIZE];

	snprintf(text, sizeof(text), "slurm_recovery: plugstack.conf: %s: %s, ignored", show_value(argument, shown),
		 hint);
	complain(text);
}

static unsigned bit_of(const char *word, size_t length)
{
	for (int option = 0; option < OPTION_COUNT; option++) {
		const char *known = option_rows[option].word;

		if (strlen(known) == length && strncasecmp(known, word, length) == 0)
			return 1u << option;
	}
	return 0;
}

static bool read_max_mode(struct site *site, const char *value)
{
	int rank = mode_rank(value);

	if (rank >= 0)
		site->max_mode = rank;
	return rank >= 0;
}

static bool read_max_requeues(struct site *site, const char *value)
{
	unsigned number;
	bool understood = read_number(value, strnlen(value, VALUE_SIZE), MOST_REQUEUES, &number);

	if (understood)
		site->max_requeues = number;
	return understood;
}

static bool read_job_options(struct site *site, const char *value)
{
	unsigned bits = 0;

	if (strcasecmp(value, "all") == 0 || strcasecmp(value, "none") == 0) {
		site->job_options = strcasecmp(value, "all") == 0 ? EVERY_OPTION : 0;
		return true;
	}
	for (const char *word = value;; word++) {
		size_t length = strcspn(word, ",");
		unsigned bit = bit_of(word, length);

		if (!bit)
			return false;
		bits |= bit;
		word += length;
		if (!*word)
			break;
	}
	site->job_options = bits;
	return true;
}

static const struct {
	const char *name;
	bool (*read)(struct site *site, const char *value);
	const char *hint;
} rows[] = {
	{"max_mode", read_max_mode, "not act, observe or off"},
	{"max_requeues", read_max_requeues, "not a number from 0 to 1000"},
	{"job_options", read_job_options,
	 "not all, none, or a list of mode,checkpoint,max-requeues,log,min-nodes"},
};

static void read_argument(struct site *site, const char *argument, complain_fn complain)
{
	size_t length = strcspn(argument, "=");

	for (size_t row = 0; row < sizeof(rows) / sizeof(rows[0]); row++) {
		if (strlen(rows[row].name) != length || strncmp(rows[row].name, argument, length) != 0)
			continue;
		if (!argument[length] || !rows[row].read(site, argument + length + 1))
			complain_of(complain, argument, rows[row].hint);
		return;
	}
	complain_of(complain, argument, "unknown (known are max_mode=, max_requeues=, job_options=)");
}

struct site read_site(int count, char *const arguments[], complain_fn complain)
{
	struct site site = {mode_rank("act"), MOST_REQUEUES, EVERY_OPTION};

	for (int at = 0; at < count; at++)
		if (arguments[at])
			read_argument(&site, arguments[at], complain);
	return site;
}

static bool lower_mode(const struct site *site, char value[VALUE_SIZE])
{
	int rank = mode_rank(value);
	bool lowered = rank > site->max_mode;

	snprintf(value, VALUE_SIZE, "%s", mode_word(lowered ? site->max_mode : rank));
	return lowered;
}

static bool lower_requeues(const struct site *site, char value[VALUE_SIZE])
{
	unsigned number;

	if (read_number(value, strnlen(value, VALUE_SIZE), site->max_requeues, &number))
		return false;
	snprintf(value, VALUE_SIZE, "%u", site->max_requeues);
	return true;
}

enum verdict hold_against(const struct site *site, enum option option, char value[VALUE_SIZE],
			  char told[COMPLAINT_SIZE])
{
	const char *flag = option_rows[option].flag;
	char wish[SHOWN_SIZE];
	bool lowered = false;

	show_value(value, wish);
	if (!(site->job_options & (1u << option))) {
		snprintf(told, COMPLAINT_SIZE,
			 "slurm_recovery: --%s=%s: this site does not let a job choose it, ignored", flag, wish);
		return DROPPED;
	}
	if (option == OPTION_MODE)
		lowered = lower_mode(site, value);
	else if (option == OPTION_MAX_REQUEUES)
		lowered = lower_requeues(site, value);
	if (!lowered)
		return ALLOWED;
	snprintf(told, COMPLAINT_SIZE, "slurm_recovery: --%s=%s: this site allows at most %.8s, taken as that", flag,
		 wish, value);
	return LOWERED;
}
