/* SPDX-License-Identifier: MIT */
/* Hooks of calls that read and write inside the C library, where no hook of ours is: TCP, then. */
#include <aio.h>
#include <stdarg.h>

#include "sockets/preload/hook.h"
#include "sockets/record/user.h"

static void pin(int fd)
{
	struct rec *r = sock_live(fd);

	if (r)
		sock_hand_over(r, fd, WHY_STDIO);
}

/* Where the program's request says which descriptor. */
static void pin_request(const struct aiocb *request)
{
	if (user_readable(request, sizeof(*request)))
		pin(request->aio_fildes);
}

HOOK int aio_read(struct aiocb *request)
{
	pin_request(request);
	return real(aio_read)(request);
}

HOOK int aio_write(struct aiocb *request)
{
	pin_request(request);
	return real(aio_write)(request);
}

HOOK int lio_listio(int mode, struct aiocb *const list[restrict], int n,
		    struct sigevent *restrict event)
{
	for (int i = 0; i < n && user_readable(&list[i], sizeof(list[i])); i++)
		if (list[i])
			pin_request(list[i]);
	return real(lio_listio)(mode, list, n, event);
}

HOOK int vdprintf(int fd, const char *restrict format, va_list list)
{
	pin(fd);
	return real(vdprintf)(fd, format, list);
}

HOOK int dprintf(int fd, const char *restrict format, ...)
{
	va_list list;
	int n;

	va_start(list, format);
	n = vdprintf(fd, format, list);
	va_end(list);
	return n;
}

/* What a fortified program calls; its check is of the format, and ours would be none. */
int __vdprintf_chk(int fd, int flag, const char *restrict format, va_list list);
HOOK int __dprintf_chk(int fd, int flag, const char *restrict format, ...);

int __dprintf_chk(int fd, int flag, const char *restrict format, ...)
{
	va_list list;
	int n;

	pin(fd);
	va_start(list, format);
	n = __vdprintf_chk(fd, flag, format, list);
	va_end(list);
	return n;
}

HOOK_ALIAS(int, aio_read64, aio_read, (struct aiocb64 * request));
HOOK_ALIAS(int, aio_write64, aio_write, (struct aiocb64 * request));
