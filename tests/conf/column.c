/* SPDX-License-Identifier: MIT */
/* See column.h. */
#include "conf/column.h"

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static const char *const names[N_COLUMNS] = { "strict", "full", "local", "denied", "self" };

const char *column_name(enum column c)
{
	return names[c];
}

bool column_find(const char *name, enum column *out)
{
	for (int i = 0; i < N_COLUMNS; i++) {
		if (!strcmp(names[i], name)) {
			*out = (enum column)i;
			return true;
		}
	}
	return false;
}

/* A filter that does not work would make the column one more `local`. */
static bool is_denied(void)
{
	char from = 1, to = 0;
	struct iovec local = { &to, 1 }, remote = { &from, 1 };

	return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) < 0 && errno == EPERM &&
	       process_vm_writev(getpid(), &local, 1, &remote, 1, 0) < 0 && errno == EPERM;
}

void column_deny_process_vm(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(code[0]), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0 || !is_denied()) {
		printf("1..0 # SKIP no seccomp filter can be had: %s\n", strerror(errno));
		exit(77);
	}
}
