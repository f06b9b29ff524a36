/* SPDX-License-Identifier: MIT */
/*
 * A main() for a fuzzer without libFuzzer: feeds it every file of the folders named on the
 * command line. So the corpus is a regression test under any compiler and sanitizer, and its
 * coverage can be measured like that of any test.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* An exact-size heap copy, so that a sanitizer sees the first byte read past the end. */
static int replay_file(int dir, const char *name)
{
	struct stat st;
	uint8_t *data;
	ssize_t got;
	int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);

	if (fd < 0 || fstat(fd, &st)) {
		perror(name);
		return -1;
	}
	if (!S_ISREG(st.st_mode)) {
		close(fd);
		return 0;
	}
	data = malloc(st.st_size);
	got = read(fd, data, st.st_size);
	close(fd);
	if (got != st.st_size) {
		fprintf(stderr, "%s: short read\n", name);
		free(data);
		return -1;
	}
	LLVMFuzzerTestOneInput(data, got);
	free(data);
	return 1;
}

static long replay_folder(const char *path)
{
	DIR *dir = opendir(path);
	struct dirent *entry;
	long count = 0;

	if (!dir) {
		perror(path);
		return -1;
	}
	while (count >= 0 && (entry = readdir(dir))) {
		int rc = replay_file(dirfd(dir), entry->d_name);

		count = rc < 0 ? -1 : count + rc;
	}
	closedir(dir);
	return count;
}

int main(int argc, char **argv)
{
	long total = 0;

	LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
	for (int i = 1; i < argc; i++) {
		long count = replay_folder(argv[i]);

		if (count < 0)
			return EXIT_FAILURE;
		total += count;
	}
	printf("%ld inputs\n", total);
	return total ? EXIT_SUCCESS : EXIT_FAILURE;
}
