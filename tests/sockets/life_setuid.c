/* SPDX-License-Identifier: MIT */
/* A setuid program with the preload in its environment: no effect on it, TCP for its peer. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>

#include "life.h"

#define NOBODY 65534

/* A copy of this program that belongs to somebody else and runs as him. */
static bool copy_as_nobody(char *path)
{
	int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC), to = mkstemp(path);
	struct stat st;
	bool good;

	good = from >= 0 && to >= 0 && fstat(from, &st) == 0 &&
	       sendfile(to, from, NULL, (size_t)st.st_size) == st.st_size &&
	       fchown(to, NOBODY, NOBODY) == 0 && fchmod(to, 04755) == 0;
	close(from);
	close(to);
	return good;
}

/* The setuid copy: says what it is, then goes on with the connection. */
static int raised(int argc, char **argv)
{
	struct stage s = { .name = 'H' };
	char maps[4096];
	bool found = false;
	FILE *file = fopen("/proc/self/maps", "r");

	while (file && fgets(maps, sizeof(maps), file))
		found |= strstr(maps, "libflue") != NULL;
	if (file)
		fclose(file);
	stage_say(&s, "secure %lu, uid %d, library %s", getauxval(AT_SECURE), (int)geteuid(),
		  found ? "loaded" : "not loaded");
	return life_heir_main(argc, argv);
}

static void play(struct life *l)
{
	char path[] = "/tmp/sockets-setuid-XXXXXX";
	char *const *args;
	pid_t child;

	if (!copy_as_nobody(path))
		stage_die(&l->st, "no setuid copy");
	life_begin(l);
	life_heir_args(l, "life_setuid", l->st.fd, false, &args);
	child = fork();
	if (child == 0) {
		execv(path, args);
		_exit(9);
	}
	life_wait(l, child);
	unlink(path);
	life_skip(l);
	life_calm(l);
	life_go_on(l);
	close(l->st.fd);
	life_end(l);
}

int main(int argc, char **argv)
{
	if (argc > 1)
		return raised(argc, argv);
	if (geteuid() != 0) {
		printf("A needs root, to give a copy of itself away\n");
		return 77;
	}
	return life_main(play, 1, NULL);
}
