/* SPDX-License-Identifier: MIT */
/* Hooks of the calls by which a program gives memory back or protects it: pages that were found good may be so no more. */
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/shm.h>

#include "sockets/preload/hook.h"
#include "sockets/record/user.h"

HOOK int munmap(void *p, size_t n)
{
	int result = real(munmap)(p, n);

	if (result == 0)
		user_gone(p, n);
	return result;
}

HOOK int mprotect(void *p, size_t n, int protection)
{
	int result = real(mprotect)(p, n, protection);

	/* Also if it failed: some pages may have changed. */
	if (!(protection & PROT_READ))
		user_gone(p, n);
	else if (!(protection & PROT_WRITE))
		user_constant(p, n);
	return result;
}

HOOK void *mremap(void *p, size_t size, size_t new_size, int flags, ...)
{
	va_list list;
	void *to, *result;

	va_start(list, flags);
	to = va_arg(list, void *);
	va_end(list);
	result = real(mremap)(p, size, new_size, flags, to);
	if (result == MAP_FAILED)
		return result;
	user_gone(p, size);
	user_gone(result, new_size);
	return result;
}

HOOK int shmdt(const void *p)
{
	int result = real(shmdt)(p);

	if (result == 0)
		user_all_gone();
	return result;
}
