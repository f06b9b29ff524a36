/* SPDX-License-Identifier: MIT */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "processes.h"

static unsigned count_entries(pid_t pid, const char *folder)
{
	char path[64];
	struct dirent *entry;
	unsigned n = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/%s", (int)pid, folder);
	dir = opendir(path);
	while (dir && (entry = readdir(dir)))
		n += entry->d_name[0] != '.';
	if (dir)
		closedir(dir);
	return n;
}

static unsigned count_mappings(pid_t pid)
{
	char path[64], line[4200];
	unsigned n = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/maps", (int)pid);
	file = fopen(path, "r");
	while (file && fgets(line, sizeof(line), file))
		n++;
	if (file)
		fclose(file);
	return n;
}

const char *processes_status(pid_t pid, const char *field)
{
	static char line[200];
	char path[64];
	size_t len = strlen(field);
	FILE *file;
	char *at = NULL;

	snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
	file = fopen(path, "r");
	while (file && !at && fgets(line, sizeof(line), file))
		if (strncmp(line, field, len) == 0 && line[len] == ':')
			at = line + len + 1;
	if (file)
		fclose(file);
	if (!at)
		return "";
	at[strcspn(at, "\n")] = 0;
	return at + strspn(at, " \t");
}

static unsigned kib(pid_t pid, const char *field)
{
	return (unsigned)strtoul(processes_status(pid, field), NULL, 10);
}

struct footprint processes_footprint(pid_t pid)
{
	struct footprint f = { .rss_kib = kib(pid, "VmRSS"), .private_kib = kib(pid, "RssAnon") };

	f.shared_kib = kib(pid, "RssShmem");
	f.threads = count_entries(pid, "task");
	f.descriptors = count_entries(pid, "fd");
	f.mappings = count_mappings(pid);
	return f;
}

unsigned processes_shm_kib(const char *part)
{
	char path[300];
	struct dirent *entry;
	struct stat st;
	unsigned sum = 0;
	DIR *dir = opendir("/dev/shm");

	while (dir && (entry = readdir(dir))) {
		snprintf(path, sizeof(path), "/dev/shm/%s", entry->d_name);
		if (strstr(entry->d_name, part) && stat(path, &st) == 0)
			sum += (unsigned)(st.st_blocks / 2);
	}
	if (dir)
		closedir(dir);
	return sum;
}
