/* SPDX-License-Identifier: MIT */
/* Programs as `flue run` finds and judges them. */
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "target.h"

static char folder[] = "/tmp/flue-target-XXXXXX";

static int make_folder(void **st)
{
	return mkdtemp(folder) && chmod(folder, 0755) == 0 ? 0 : -1;
}

static int drop_folder(void **st)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", folder);
	return system(command);
}

static char *in_folder(const char *name)
{
	static char path[128];

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	return path;
}

static void write_file(const char *name, const void *data, size_t length, mode_t mode)
{
	int fd = open(in_folder(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, data, length), length);
	assert_int_equal(fchmod(fd, mode), 0);
	close(fd);
}

static void preload_keeps_others_and_has_the_library_once(void **st)
{
	static const struct {
		const char *before, *after;
	} rows[] = {
		{ NULL, "/a/libx.so" },
		{ "", "/a/libx.so" },
		{ "libasan.so.8", "libasan.so.8:/a/libx.so" },
		{ "one.so two.so", "one.so:two.so:/a/libx.so" },
		{ " :one.so::two.so: ", "one.so:two.so:/a/libx.so" },
		{ "/a/libx.so", "/a/libx.so" },
		{ "/a/libx.so:one.so", "one.so:/a/libx.so" },
		{ "/b/libx.so:one.so:libx.so", "one.so:/a/libx.so" },
		{ "/b/notlibx.so", "/b/notlibx.so:/a/libx.so" },
		{ "/b/libx.so.1", "/b/libx.so.1:/a/libx.so" },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char *value = target_preload(rows[i].before, "/a/libx.so");

		assert_string_equal(value, rows[i].after);
		free(value);
	}
}

static void program_is_found_as_a_shell_would(void **st)
{
	struct target t;
	char path[PATH_MAX];

	assert_int_equal(target_find("sh", &t), 0);
	assert_true(t.path[0] == '/');
	assert_int_equal(target_find("/bin/sh", &t), 0);
	assert_string_equal(t.path, "/bin/sh");
	assert_int_equal(target_find("no-such-program-here", &t), -ENOENT);
	assert_int_equal(target_find("/no/such/program", &t), -ENOENT);
	assert_int_equal(target_find("", &t), -ENOENT);
	assert_int_equal(target_find("/", &t), -EACCES);

	write_file("tool", "#!/bin/sh\n", 10, 0644);
	assert_int_equal(target_find(in_folder("tool"), &t), -EACCES);
	/* One that may not be run hides none behind it. */
	assert_int_equal(mkdir(in_folder("more"), 0755), 0);
	write_file("more/tool", "#!/bin/sh\n", 10, 0755);
	snprintf(path, sizeof(path), "/nowhere:%s:%s/more", folder, folder);
	setenv("PATH", path, 1);
	assert_int_equal(target_find("tool", &t), 0);
	assert_string_equal(t.path, in_folder("more/tool"));
	setenv("PATH", folder, 1);
	assert_int_equal(target_find("tool", &t), -EACCES);
	assert_int_equal(target_find("sh", &t), -ENOENT);
	setenv("PATH", "/usr/bin:/bin", 1);
	memset(path, 'x', sizeof(path) - 1);
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	assert_true(target_find(path, &t) < 0);
}

static void copy_self(const char *name, mode_t mode, void (*change)(Elf64_Ehdr *))
{
	static char data[1 << 24];
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
	ssize_t got = read(fd, data, sizeof(data));

	assert_true(got > (ssize_t)sizeof(Elf64_Ehdr) && got < (ssize_t)sizeof(data));
	close(fd);
	if (change)
		change((Elf64_Ehdr *)data);
	write_file(name, data, (size_t)got, mode);
}

static void without_interpreter(Elf64_Ehdr *e)
{
	Elf64_Phdr *p = (Elf64_Phdr *)((char *)e + e->e_phoff);

	for (unsigned i = 0; i < e->e_phnum; i++)
		if (p[i].p_type == PT_INTERP)
			p[i].p_type = PT_NULL;
}

static void with_another_linker(Elf64_Ehdr *e)
{
	Elf64_Phdr *p = (Elf64_Phdr *)((char *)e + e->e_phoff);

	for (unsigned i = 0; i < e->e_phnum; i++)
		if (p[i].p_type == PT_INTERP)
			((char *)e)[p[i].p_offset + 2] ^= 1;
}

static void of_32_bits(Elf64_Ehdr *e)
{
	e->e_ident[EI_CLASS] = ELFCLASS32;
}

static void beyond_its_end(Elf64_Ehdr *e)
{
	e->e_phoff = UINT64_MAX / 2;
}

static enum target_bar bar_of(const char *name)
{
	struct target t;

	assert_int_equal(target_find(in_folder(name), &t), 0);
	return t.bar;
}

static void program_that_cannot_load_the_library_is_noticed(void **st)
{
	struct target t;
	char script[160];

	copy_self("same", 0755, NULL);
	assert_int_equal(bar_of("same"), TARGET_GOOD);
	copy_self("static", 0755, without_interpreter);
	assert_int_equal(bar_of("static"), TARGET_STATIC);
	copy_self("musl", 0755, with_another_linker);
	assert_int_equal(bar_of("musl"), TARGET_FOREIGN);
	copy_self("small", 0755, of_32_bits);
	assert_int_equal(bar_of("small"), TARGET_FOREIGN);
	copy_self("mad", 0755, beyond_its_end);
	assert_int_equal(bar_of("mad"), TARGET_GOOD); /* the kernel will say */
	write_file("empty", "", 0, 0755);
	assert_int_equal(bar_of("empty"), TARGET_GOOD);
	write_file("short", ELFMAG, 4, 0755);
	assert_int_equal(bar_of("short"), TARGET_FOREIGN);

	/* What counts for a script is what reads it. */
	snprintf(script, sizeof(script), "#! \t%s/static -x\n", folder);
	write_file("script", script, strlen(script), 0755);
	assert_int_equal(target_find(in_folder("script"), &t), 0);
	assert_int_equal(t.bar, TARGET_STATIC);
	assert_string_equal(t.reason, in_folder("static"));
	snprintf(script, sizeof(script), "#!%s/loop", folder);
	write_file("loop", script, strlen(script), 0755);
	assert_int_equal(bar_of("loop"), TARGET_GOOD);
	for (int bar = TARGET_PRIVILEGED; bar <= TARGET_FOREIGN; bar++)
		assert_non_null(strstr(target_explain(bar), "no effect"));
}

static void program_with_more_rights_is_noticed(void **st)
{
	if (getuid() != 0) {
		print_message("only root can give files away\n");
		skip();
	}
	copy_self("suid", 0755, NULL);
	assert_int_equal(chmod(in_folder("suid"), 04755), 0);
	assert_int_equal(bar_of("suid"), TARGET_GOOD); /* for root that is nothing more */
	assert_int_equal(chown(in_folder("suid"), 1, 0), 0);
	assert_int_equal(chmod(in_folder("suid"), 04755), 0);
	assert_int_equal(bar_of("suid"), TARGET_PRIVILEGED);
	copy_self("sgid", 0755, NULL);
	assert_int_equal(chown(in_folder("sgid"), 0, 1), 0);
	assert_int_equal(chmod(in_folder("sgid"), 02755), 0);
	assert_int_equal(bar_of("sgid"), TARGET_PRIVILEGED);
	/* A script's set-user-ID counts for nothing. */
	write_file("script", "#!/bin/sh\n", 10, 0755);
	assert_int_equal(chown(in_folder("script"), 1, 0), 0);
	assert_int_equal(chmod(in_folder("script"), 04755), 0);
	assert_int_equal(bar_of("script"), TARGET_GOOD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(preload_keeps_others_and_has_the_library_once),
		cmocka_unit_test(program_is_found_as_a_shell_would),
		cmocka_unit_test(program_that_cannot_load_the_library_is_noticed),
		cmocka_unit_test(program_with_more_rights_is_noticed),
	};

	return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
