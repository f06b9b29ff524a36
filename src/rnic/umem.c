/* SPDX-License-Identifier: MIT */
#include "rnic/umem.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

_Thread_local bool umem_guarded THREAD_LOCAL_FAST;

/* 0: use the kernel; 1: it refused once, so it always will. */
static _Atomic int refused;

typedef ssize_t (*vm_fn)(pid_t, const struct iovec *, unsigned long, const struct iovec *,
			 unsigned long, unsigned long);

static int through_kernel(vm_fn fn, void *own, const void *user, size_t len)
{
	size_t done = 0;

	while (done < len) {
		struct iovec local = { (char *)own + done, len - done };
		struct iovec remote = { (char *)user + done, len - done };
		ssize_t n = fn(getpid(), &local, 1, &remote, 1, 0);

		if (n <= 0) {
			if (n < 0 && (errno == EPERM || errno == ENOSYS)) {
				atomic_store_explicit(&refused, 1, memory_order_relaxed);
				return -ENOSYS;
			}
			return -EFAULT;
		}
		done += (size_t)n;
	}
	return 0;
}

static bool use_kernel(void)
{
	return umem_guarded && !atomic_load_explicit(&refused, memory_order_relaxed);
}

int umem_write(void *user, const void *src, size_t len)
{
	if (use_kernel()) {
		int rc = through_kernel(process_vm_writev, (void *)src, user, len);

		if (rc != -ENOSYS)
			return rc;
	}
	memcpy(user, src, len);
	return 0;
}

int umem_read(void *dst, const void *user, size_t len)
{
	if (use_kernel()) {
		int rc = through_kernel(process_vm_readv, dst, user, len);

		if (rc != -ENOSYS)
			return rc;
	}
	memcpy(dst, user, len);
	return 0;
}
