/*
 * For test_spank_build.py: what the plugin's grammar makes of text. Reads records of two texts, each with a NUL:
 * a number of an option and a value, or "site" and one argument of plugstack.conf. Prints a line for each.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "site.h"

static void print_it(const char *complaint)
{
	printf("%s\n", complaint);
}

static void judge(const char *what, const char *value)
{
	struct site site = {0, 0, (1u << OPTION_COUNT) - 1};
	char held[VALUE_SIZE], told[COMPLAINT_SIZE];
	int option = atoi(what);

	if (strcmp(what, "site") == 0) {
		site = read_site(1, (char *[]){(char *)value}, print_it);
		printf("%d %u %u\n", site.max_mode, site.max_requeues, site.job_options);
		return;
	}
	if (!option_rows[option].is_valid(value)) {
		printf("no\n");
		return;
	}
	snprintf(held, sizeof(held), "%s", value);
	hold_against(&site, (enum option)option, held, told);
	printf("yes\n");
}

int main(void)
{
	char *what = NULL, *value = NULL;
	size_t room = 0, space = 0;

	while (getdelim(&what, &room, '\0', stdin) > 0 && getdelim(&value, &space, '\0', stdin) > 0)
		judge(what, value);
	free(what);
	free(value);
	return 0;
}
