#include "options.h"

#include <string.h>
#include <strings.h>

#define MOST_DIGITS 7

static const char *const modes[] = {"off", "observe", "act"};
#define MODE_COUNT ((int)(sizeof(modes) / sizeof(modes[0])))

int mode_rank(const char *word)
{
	for (int rank = 0; rank < MODE_COUNT; rank++)
		if (strcasecmp(word, modes[rank]) == 0)
			return rank;
	return -1;
}

const char *mode_word(int rank)
{
	return rank >= 0 && rank < MODE_COUNT ? modes[rank] : modes[0];
}

bool read_number(const char *digits, size_t length, unsigned most, unsigned *number)
{
	unsigned value = 0;

	if (length < 1 || length > MOST_DIGITS)
		return false;
	for (size_t at = 0; at < length; at++) {
		if (digits[at] < '0' || digits[at] > '9')
			return false;
		value = value * 10 + (unsigned)(digits[at] - '0');
	}
	*number = value;
	return value <= most;
}

static bool is_mode(const char *value)
{
	return mode_rank(value) >= 0;
}

static bool is_absolute_path(const char *value)
{
	return value[0] == '/' && strnlen(value, VALUE_SIZE) < VALUE_SIZE;
}

static bool is_requeues(const char *value)
{
	unsigned number;
	size_t length = strnlen(value, MOST_DIGITS);

	return length < MOST_DIGITS && read_number(value, length, MOST_REQUEUES, &number);
}

static bool is_count_of_nodes(const char *value, size_t length)
{
	unsigned number;

	return read_number(value, length, MOST_NODES, &number) && number > 0;
}

static bool is_min_nodes(const char *value)
{
	size_t length = strnlen(value, 2 * MOST_DIGITS + 2);
	const char *colon = memchr(value, ':', length);
	size_t least = colon ? (size_t)(colon - value) : length;

	return is_count_of_nodes(value, least) && (!colon || is_count_of_nodes(colon + 1, length - least - 1));
}

const struct option_row option_rows[OPTION_COUNT] = {
	[OPTION_MODE] = {
		"mode", "recovery", "RECOVERY", "act|observe|off",
		"what is done when the job fails: act (restart it), observe (only record), off",
		"write act, observe or off", is_mode,
	},
	[OPTION_CHECKPOINT] = {
		"checkpoint", "recovery-checkpoint", "RECOVERY_CHECKPOINT", "DIR",
		"folder of the job's checkpoints (absolute path): where a restart continues, and what progress is",
		"not an absolute path", is_absolute_path,
	},
	[OPTION_MAX_REQUEUES] = {
		"max-requeues", "recovery-max-requeues", "RECOVERY_MAX_REQUEUES", "N",
		"restart the job N times at most (0 to 1000)",
		"not a number from 0 to 1000", is_requeues,
	},
	[OPTION_LOG] = {
		"log", "recovery-log", "RECOVERY_LOG", "PATTERN",
		"the job's log (absolute path), with the patterns of --output, where --output is not it",
		"not an absolute path", is_absolute_path,
	},
	[OPTION_MIN_NODES] = {
		"min-nodes", "recovery-min-nodes", "RECOVERY_MIN_NODES", "MIN[:STEP]",
		"a restart may have fewer nodes: MIN, or STEP more at a time",
		"not MIN or MIN:STEP, both from 1 to 1000000", is_min_nodes,
	},
};

const char *show_value(const char *value, char shown[SHOWN_SIZE])
{
	size_t most = SHOWN_SIZE - sizeof("..."), at = 0;

	for (; at < most && value[at]; at++) {
		unsigned char byte = (unsigned char)value[at];

		shown[at] = byte < 0x20 || byte == 0x7f ? '?' : (char)byte;
	}
	memcpy(shown + at, value[at] ? "..." : "", value[at] ? sizeof("...") : 1);
	return shown;
}
