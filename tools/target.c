/* SPDX-License-Identifier: MIT */
#include "target.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SCRIPT_DEPTH 4 /* interpreters that are scripts themselves; the kernel has the same limit */

/* ---- finding it ---- */

static int try_file(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return -errno;
	if (S_ISDIR(st.st_mode) || !S_ISREG(st.st_mode) || access(path, X_OK))
		return -EACCES;
	return 0;
}

/* A file that may not be run is remembered, but a later one that may be is better. */
static int search(const char *program, char out[PATH_MAX])
{
	const char *path = getenv("PATH");
	int result = -ENOENT;

	if (!path)
		path = "/bin:/usr/bin";
	for (;;) {
		size_t length = strcspn(path, ":");
		int n = length ? snprintf(out, PATH_MAX, "%.*s/%s", (int)length, path, program)
			       : snprintf(out, PATH_MAX, "./%s", program);
		int rc = n < PATH_MAX ? try_file(out) : -ENAMETOOLONG;

		if (rc == 0)
			return 0;
		if (rc == -EACCES)
			result = rc;
		if (!path[length])
			return result;
		path += length + 1;
	}
}

/* ---- looking at it ---- */

/* Will the kernel start it with other rights than ours? */
static bool is_privileged(const char *path)
{
	struct stat st;

	if (stat(path, &st))
		return false;
	if ((st.st_mode & S_ISUID) && st.st_uid != getuid())
		return true;
	if ((st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid())
		return true;
	return getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0;
}

/* The dynamic linker that an ELF file names; "" if it names none; false if it is not such a file. */
static bool elf_interpreter(int fd, const Elf64_Ehdr *e, char out[PATH_MAX])
{
	Elf64_Phdr p;

	for (unsigned i = 0; i < e->e_phnum; i++) {
		off_t at = (off_t)(e->e_phoff + (uint64_t)i * e->e_phentsize);

		if (pread(fd, &p, sizeof(p), at) != (ssize_t)sizeof(p))
			return false;
		if (p.p_type != PT_INTERP)
			continue;
		if (p.p_filesz == 0 || p.p_filesz > PATH_MAX ||
		    pread(fd, out, p.p_filesz, (off_t)p.p_offset) != (ssize_t)p.p_filesz)
			return false;
		out[p.p_filesz - 1] = '\0';
		return true;
	}
	out[0] = '\0';
	return true;
}

/* The ELF header, if it is one of our kind. */
static bool read_header(int fd, Elf64_Ehdr *e)
{
	return pread(fd, e, sizeof(*e), 0) == (ssize_t)sizeof(*e) &&
	       memcmp(e->e_ident, ELFMAG, SELFMAG) == 0 &&
	       e->e_ident[EI_CLASS] == (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) &&
	       e->e_phentsize == sizeof(Elf64_Phdr);
}

static enum target_bar look_at_elf(int fd)
{
	char theirs[PATH_MAX], ours[PATH_MAX];
	Elf64_Ehdr e, self;
	enum target_bar bar = TARGET_GOOD;
	int self_fd;

	if (sizeof(void *) != 8)
		return TARGET_GOOD; /* not looked at */
	if (!read_header(fd, &e))
		return TARGET_FOREIGN;
	self_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	if (self_fd < 0)
		return TARGET_GOOD;
	if (read_header(self_fd, &self) && elf_interpreter(self_fd, &self, ours) &&
	    elf_interpreter(fd, &e, theirs)) {
		if (!theirs[0])
			bar = TARGET_STATIC;
		else if (e.e_machine != self.e_machine || (ours[0] && strcmp(ours, theirs) != 0))
			bar = TARGET_FOREIGN;
	}
	close(self_fd);
	return bar;
}

/* "#! interpreter argument": the interpreter, in place. */
static char *script_interpreter(char *line)
{
	char *at = line + 2;

	at += strspn(at, " \t");
	at[strcspn(at, " \t\n")] = '\0';
	return at;
}

static void look_at(struct target *t)
{
	for (int depth = 0; depth < SCRIPT_DEPTH; depth++) {
		char line[PATH_MAX] = "";
		int fd = open(t->reason, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
		bool script;

		/* Set-user-ID does not count for scripts, only for what reads them. */
		script = fd >= 0 && pread(fd, line, sizeof(line) - 1, 0) > 2 && line[0] == '#' &&
			 line[1] == '!';
		if (!script && is_privileged(t->reason))
			t->bar = TARGET_PRIVILEGED;
		else if (fd >= 0 && memcmp(line, ELFMAG, SELFMAG) == 0)
			t->bar = look_at_elf(fd);
		if (fd >= 0)
			close(fd);
		if (!script)
			return;
		snprintf(t->reason, sizeof(t->reason), "%s", script_interpreter(line));
	}
}

int target_find(const char *program, struct target *t)
{
	int rc;

	memset(t, 0, sizeof(*t));
	if (!*program)
		return -ENOENT;
	if (strchr(program, '/')) {
		if (strlen(program) >= sizeof(t->path))
			return -ENAMETOOLONG;
		strcpy(t->path, program);
		rc = try_file(t->path);
	} else {
		rc = search(program, t->path);
	}
	if (rc)
		return rc;
	memcpy(t->reason, t->path, sizeof(t->reason));
	look_at(t);
	return 0;
}

const char *target_explain(enum target_bar bar)
{
	static const char *const sentences[] = {
		[TARGET_GOOD] = "",
		[TARGET_PRIVILEGED] = "runs with more rights than you have, so the dynamic linker "
				      "ignores the library: this has no effect",
		[TARGET_STATIC] = "is linked statically, so no library can be loaded into it: this "
				  "has no effect",
		[TARGET_FOREIGN] = "is made for another machine or C library than Flue's sockets "
				   "library: this has no effect",
	};

	return sentences[bar];
}

/* ---- LD_PRELOAD ---- */

static bool same_library(const char *entry, size_t length, const char *library)
{
	const char *base = strrchr(library, '/');
	size_t base_length;

	base = base ? base + 1 : library;
	base_length = strlen(base);
	/* Another copy of it is the same for this purpose: two would hook each other. */
	return length >= base_length &&
	       strncmp(entry + length - base_length, base, base_length) == 0 &&
	       (length == base_length || entry[length - base_length - 1] == '/');
}

char *target_preload(const char *before, const char *library)
{
	size_t room = (before ? strlen(before) : 0) + strlen(library) + 2;
	char *value = malloc(room);
	size_t at = 0;

	if (!value)
		return NULL;
	while (before && *before) {
		size_t length = strcspn(before, " :");

		if (length && !same_library(before, length, library)) {
			memcpy(value + at, before, length);
			at += length;
			value[at++] = ':';
		}
		before += length;
		before += strspn(before, " :");
	}
	strcpy(value + at, library);
	return value;
}
