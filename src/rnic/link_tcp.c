/* SPDX-License-Identifier: MIT */
/* Life of a TCP link, its events, and its end. */
#include "rnic/link_tcp.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/util.h"

static struct link_tcp *tcp_of(struct link *link)
{
	return container_of(link, struct link_tcp, link);
}

/* ---- the end ---- */

/* Both halves are closed; ours is finished when the peer has acknowledged our FIN. */
void link_tcp_look_for_end(struct link_tcp *l)
{
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	int err = 0;

	if (getsockopt(l->io.fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 &&
	    info.tcpi_state != TCP_CLOSE)
		return;
	len = sizeof(err);
	if (getsockopt(l->io.fd, SOL_SOCKET, SO_ERROR, &err, &len) < 0)
		err = errno;
	if (err)
		qp_link_failed(l->link.qp, err);
	else
		qp_link_over(l->link.qp);
}

static void await_end(struct link *link)
{
	struct link_tcp *l = tcp_of(link);
	/* The end of the stream stays readable for ever: only changes are of interest now. */
	int rc = engine_watch(l->engine, &l->io, EPOLLIN | EPOLLET);

	if (rc)
		qp_link_starved(link->qp, -rc);
	else
		link_tcp_look_for_end(l);
}

/*
 * Its kernel acknowledges what we send, and probes, whatever its process does: only probes and segments that were
 * sent again tell that it does not. Probes where nothing is under way are TCP's keepalive; the kernel must not give up by
 * itself before we do.
 */
static uint64_t silence(struct link *link, bool watch)
{
	struct link_tcp *l = tcp_of(link);
	struct tcp_info info = { 0 };
	socklen_t len = sizeof(info);
	int second = 1, count = 127, on = watch;

	setsockopt(l->io.fd, IPPROTO_TCP, TCP_KEEPIDLE, &second, sizeof(second));
	setsockopt(l->io.fd, IPPROTO_TCP, TCP_KEEPINTVL, &second, sizeof(second));
	setsockopt(l->io.fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
	setsockopt(l->io.fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
	if (getsockopt(l->io.fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0)
		return 0;
	return info.tcpi_retransmits || info.tcpi_probes > 1 ? info.tcpi_last_ack_recv : 0;
}

static void close_link(struct link *link, enum link_end how)
{
	struct sockaddr nobody = { .sa_family = AF_UNSPEC };
	struct link_tcp *l = tcp_of(link);

	if (!link->open)
		return;
	link->open = false;
	if (how == LINK_ABANDON) {
		engine_io_close(&l->io);
		free(l->tx.part);
		l->tx.part = NULL;
		l->rx.buf = NULL; /* the parent's byte order of things is not ours to untangle */
		return;
	}
	engine_forget(l->engine, &l->io);
	/* Disconnecting resets at once, also when an adopted descriptor has copies elsewhere. */
	if (how == LINK_RESET && engine_io_is_ours(&l->io))
		connect(l->io.fd, &nobody, sizeof(nobody));
	engine_io_close(&l->io);
	link_tcp_tx_reset(l);
	link_tcp_rx_reset(l);
}

/* ---- at work ---- */

static void start(struct link *link)
{
	struct link_tcp *l = tcp_of(link);

	if (l->rx.fresh)
		link_tcp_rx_run(l);
	else
		link_tcp_tx_run(l);
}

/* ---- life ---- */

static void destroy(struct link *link)
{
	free(tcp_of(link));
}

static const struct link_ops tcp_ops = {
	.start = start,
	.kick = link_tcp_kick,
	.await_end = await_end,
	.silence = silence,
	.close = close_link,
	.destroy = destroy,
};

/* FPDUs follow the path's segment size, unless the other end is one of us (RFC 5044 5.1). */
static size_t choose_mulpdu(int fd, const struct mpa_terms *t, uint32_t fpdu_max)
{
	int mss = 536;
	socklen_t len = sizeof(mss);
	size_t n;

	if (!t->own_peer && (getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &mss, &len) < 0 || mss < 536))
		mss = 536;
	n = t->own_peer ? MPA_MULPDU_MAX : mpa_mulpdu((size_t)mss, t->tx_markers);
	if (fpdu_max)
		n = min_size(n, mpa_mulpdu(fpdu_max, t->tx_markers));
	return n;
}

static void begin_stream(struct link_tcp *l, const struct link_tcp_attr *a)
{
	const struct mpa_terms *t = a->terms;
	uint8_t version = t->rev ? 1 : 0;

	l->ddp = (struct ddp_params) { .dv = version, .rv = version, .full = t->full };
	l->tx.crc = t->crc;
	l->tx.marked = t->tx_markers;
	l->tx.mulpdu = choose_mulpdu(a->io->fd, t, a->fpdu_max);
	l->tx.mulpdu_cap = a->fpdu_max ? l->tx.mulpdu : MPA_MULPDU_MAX;
	l->rx.in = (struct mpa_stream) { .crc = t->crc, .markers = t->rx_markers };
}

int link_tcp_create(struct qp *q, const struct link_tcp_attr *a, struct link **out)
{
	struct link_tcp *l = calloc(1, sizeof(*l));
	int rc;

	if (!l)
		return -ENOMEM;
	l->link.ops = &tcp_ops;
	l->link.kind = FLUE_LINK_TCP;
	l->link.qp = q;
	l->engine = q->engine;
	begin_stream(l, a);
	rc = link_tcp_rx_preload(l, a->early, a->early_len);
	l->io.ready = link_tcp_ready;
	if (rc == 0) {
		engine_io_move(l->engine, a->io, &l->io);
		rc = engine_watch(l->engine, &l->io, EPOLLIN);
		if (rc)
			engine_io_move(l->engine, &l->io, a->io);
	}
	if (rc) {
		link_tcp_rx_reset(l);
		free(l);
		return rc;
	}
	*out = &l->link;
	return 0;
}

void link_tcp_return(struct link *link, struct engine_io *io)
{
	struct link_tcp *l = tcp_of(link);

	engine_forget(l->engine, &l->io);
	engine_io_move(l->engine, &l->io, io);
	link_tcp_rx_reset(l);
	free(l);
}
