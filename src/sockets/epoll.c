/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/lock.h"
#include "base/util.h"
#include "sockets/bell.h"
#include "sockets/epoll.h"
#include "sockets/epoll_priv.h"
#include "sockets/process.h"
#include "sockets/real.h"
#include "sockets/sock.h"
#include "sockets/stream.h"

#define SETS         256
#define MEMBERS_MOST (1u << 18)
/* A set is locked while a wait spins, but not longer. */
#define LOCK_NS (10 * NSEC_PER_MSEC)

_Atomic(struct epoll_set *) epoll_table[SOCK_FDS];
static struct epoll_set *sets[SETS];
static struct lock sets_lock;
static _Atomic size_t n_sets; /* entries ever used */
static _Atomic int highest = -1;
_Atomic uint32_t epoll_lanes; /* counts lanes that appeared */

static void enter(int fd, struct epoll_set *s)
{
	int high = atomic_load(&highest);

	while (fd > high && !atomic_compare_exchange_weak(&highest, &high, fd))
		;
	atomic_store(&epoll_table[fd], s);
}

static void *take_memory(size_t size)
{
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return p == MAP_FAILED ? NULL : p;
}

void epoll_created(int fd)
{
	struct epoll_set *s;
	size_t i;

	process_init();
	if (settings.off || (unsigned)fd >= SOCK_FDS || !process_is_self())
		return;
	s = take_memory(sizeof(*s));
	if (!s)
		return;
	s->index = take_memory(SOCK_FDS * sizeof(*s->index));
	s->member = take_memory(MEMBERS_MOST * sizeof(*s->member));
	s->hot = take_memory(MEMBERS_MOST * sizeof(*s->hot));
	s->cold = take_memory(MEMBERS_MOST * sizeof(*s->cold));
	lock_take(&sets_lock);
	for (i = 0; i < SETS && sets[i]; i++)
		;
	if (i < SETS && s->index && s->member && s->hot && s->cold) {
		sets[i] = s;
		if (i >= n_sets)
			atomic_store(&n_sets, i + 1);
		s->refs = 1;
		s->ep = fd;
		s->spin = settings.spin_ns;
		enter(fd, s);
		s = NULL;
	}
	lock_give(&sets_lock);
	if (s)
		epoll_free(s);
}

void epoll_free(struct epoll_set *s)
{
	if (s->index)
		munmap(s->index, SOCK_FDS * sizeof(*s->index));
	if (s->member)
		munmap(s->member, MEMBERS_MOST * sizeof(*s->member));
	if (s->hot)
		munmap(s->hot, MEMBERS_MOST * sizeof(*s->hot));
	if (s->cold)
		munmap(s->cold, MEMBERS_MOST * sizeof(*s->cold));
	munmap(s, sizeof(*s));
}

/* Not for ever: in a signal handler this very thread may hold it. */
static bool lock_soon(struct lock *l)
{
	uint64_t start = clock_now();
	uint32_t free = 0;

	while (!atomic_compare_exchange_strong(&l->word, &free, 1)) {
		if (clock_now() - start > LOCK_NS)
			return false;
		free = 0;
		sched_yield();
	}
	return true;
}

/* --- members */

static struct member *find(struct epoll_set *s, int fd)
{
	uint32_t n = (unsigned)fd < SOCK_FDS ? s->index[fd] : 0;

	return n ? &s->member[n - 1] : NULL;
}

static struct member *add(struct epoll_set *s, int fd, struct rec *r)
{
	struct member *m;
	uint32_t n;

	if (s->free) {
		n = s->free - 1;
		s->free = s->member[n].next_free;
	} else if (s->used < MEMBERS_MOST) {
		n = s->used++;
	} else {
		return NULL;
	}
	m = &s->member[n];
	*m = (struct member) { .rec = r, .fd = fd };
	s->index[fd] = n + 1;
	return m;
}

/* --- hot and cold */

static void list_add(struct watch *list, uint32_t *n, struct epoll_set *s, struct member *m)
{
	m->at = *n;
	list[(*n)++] = (struct watch) { .stir = m->rec->rx_stir,
					.rung = m->rec->rx_rung,
					.member = (uint32_t)(m - s->member),
					.seen = atomic_load(m->rec->rx_stir),
					.always = true };
}

static void list_remove(struct watch *list, uint32_t *n, struct epoll_set *s, struct member *m)
{
	list[m->at] = list[--*n];
	s->member[list[m->at].member].at = m->at;
}

static void set_dirty(struct epoll_set *s, struct member *m, bool dirty)
{
	s->dirty += dirty - m->dirty;
	m->dirty = dirty;
}

static void unarm(struct epoll_set *s, struct member *m)
{
	if (m->cold) {
		m->cold = false;
		list_remove(s->cold, &s->colds, s, m);
	}
	if (m->armed) {
		m->armed = false;
		stream_disarm(m->rec, m->belled);
	}
	if (m->held) {
		m->held = false;
		s->helds--;
		set_dirty(s, m, true);
	}
}

void epoll_heat(struct epoll_set *s, struct member *m)
{
	unarm(s, m);
	if (!m->hot) {
		m->hot = true;
		list_add(s->hot, &s->hots, s, m);
	}
	s->hot[m->at].always = true;
}

void epoll_cool(struct epoll_set *s, struct member *m)
{
	if (!m->hot)
		return;
	m->hot = false;
	list_remove(s->hot, &s->hots, s, m);
}

/* What is told from now on is seen by the arming that follows, or stirs. */
static void make_cold(struct epoll_set *s, struct member *m)
{
	if (m->cold)
		return;
	epoll_cool(s, m);
	m->cold = true;
	list_add(s->cold, &s->colds, s, m);
}

bool epoll_hold(struct epoll_set *s, struct member *m)
{
	make_cold(s, m);
	s->helds += !m->held;
	m->held = true;
	set_dirty(s, m, true);
	if (stream_ask_room(m->rec))
		return true;
	epoll_heat(s, m);
	return false;
}

bool epoll_arm(struct epoll_set *s, struct member *m, const uint64_t *told)
{
	bool belled = epoll_is_belled(s, m);

	make_cold(s, m);
	/* Rung before it was armed is not rung now; who publishes after the arming must ring. */
	if (belled)
		atomic_store(m->rec->rx_rung, 0);
	if (!stream_arm(m->rec, told, belled)) {
		epoll_heat(s, m);
		return false;
	}
	m->armed = true;
	m->belled = belled;
	return true;
}

void epoll_answer(struct epoll_set *s)
{
	s->rang = false;
	for (uint32_t i = 0; i < s->colds; i++)
		if (atomic_load_explicit(s->cold[i].rung, memory_order_relaxed))
			atomic_store_explicit(s->cold[i].rung, 0, memory_order_relaxed);
	/* Their stirring and then our being rung; our not being rung and then their stirring: one sees the other's. */
	atomic_thread_fence(memory_order_seq_cst);
	for (uint32_t i = s->colds; i-- > 0;)
		if (atomic_load_explicit(s->cold[i].stir, memory_order_acquire) != s->cold[i].seen)
			epoll_heat(s, &s->member[s->cold[i].member]);
}

void epoll_hang_bell(struct epoll_set *s, int ep)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u64 = BELL_DATA };
	int saved = errno;

	if (!s->bell_pid && !s->exact && bell_own() >= 0 &&
	    real(epoll_ctl)(ep, EPOLL_CTL_ADD, bell_own(), &event) == 0)
		s->bell_pid = getpid();
	errno = saved;
}

/* The kernel's set is going to be used by others, who know nothing of bells. */
static void take_bell_down(struct epoll_set *s, int ep)
{
	if (s->bell_pid)
		real(epoll_ctl)(ep, EPOLL_CTL_DEL, bell_own(), NULL);
	s->bell_pid = 0;
}

static void drop(struct epoll_set *s, struct member *m)
{
	unarm(s, m);
	epoll_cool(s, m);
	set_dirty(s, m, false);
	s->index[m->fd] = 0;
	m->rec = NULL;
	m->next_free = s->free;
	s->free = (uint32_t)(m - s->member) + 1;
}

/* What the kernel is to look for: what the program wishes, but not room on the carrier for a full ring. Then a peer that
 * was killed must be told of, which for the program would show in its next write. */
static struct epoll_event wanted(const struct member *m)
{
	struct epoll_event event = m->wish;

	if (m->disarmed)
		event.events = EPOLLONESHOT; /* errors are told once, as the kernel would */
	else if (m->held)
		event.events &= ~(uint32_t)(EPOLLOUT | EPOLLWRNORM);
	if (m->held && stream_can_be_rung(m->rec))
		event.events |= EPOLLRDHUP;
	return event;
}

static void reconcile_one(struct epoll_set *s, int ep, struct member *m)
{
	struct epoll_event event = wanted(m);

	if (m->gone) {
		real(epoll_ctl)(ep, EPOLL_CTL_DEL, m->fd, NULL);
		drop(s, m);
		return;
	}
	real(epoll_ctl)(ep, EPOLL_CTL_MOD, m->fd, &event);
	m->kernel = event;
	set_dirty(s, m, false);
}

void epoll_reconcile(struct epoll_set *s, int ep)
{
	int saved = errno;

	for (uint32_t i = 0; i < s->used && s->dirty > 0; i++)
		if (s->member[i].rec && s->member[i].dirty)
			reconcile_one(s, ep, &s->member[i]);
	errno = saved;
}

/* --- the program's changes */

/* Somebody sleeps in the kernel and could not see that a lane is readable: make it wake up. */
static void wake_sleepers(struct epoll_set *s, int ep, struct member *m)
{
	struct epoll_event event = m->wish;

	if (m->armed || !sock_has_lane(m->rec))
		return;
	if (epoll_arm(s, m, NULL))
		return;
	if (s->bell_pid && bell_ring_own())
		return;
	event.events |= EPOLLOUT;
	real(epoll_ctl)(ep, EPOLL_CTL_MOD, m->fd, &event);
	m->kernel = event;
	set_dirty(s, m, true);
}

static void wish(struct epoll_set *s, struct member *m, const struct epoll_event *event)
{
	m->wish = *event;
	m->gone = false;
	m->disarmed = false;
	m->fresh = true;
	/* Edges are told anew after any change: the kernel's too. */
	set_dirty(s, m,
		  m->kernel.events != event->events || m->kernel.data.u64 != event->data.u64 ||
			  (event->events & (EPOLLET | EPOLLONESHOT)));
	if (m->laned)
		epoll_heat(s, m);
}

static bool is_lazy(const struct epoll_set *s, const struct member *m)
{
	return m && m->laned && !s->exact && s->sleepers == 0 && !(m->wish.events & EPOLLEXCLUSIVE);
}

static int control_member(struct epoll_set *s, int ep, int op, struct member *m,
			  struct epoll_event *event)
{
	if (op == EPOLL_CTL_DEL) {
		if (m->gone) {
			errno = ENOENT;
			return -1;
		}
		m->gone = true;
		set_dirty(s, m, true);
		return 0;
	}
	if ((op == EPOLL_CTL_ADD) != m->gone) {
		errno = op == EPOLL_CTL_ADD ? EEXIST : ENOENT;
		return -1;
	}
	if (event->events & EPOLLEXCLUSIVE)
		return real(epoll_ctl)(ep, op, m->fd, event);
	wish(s, m, event);
	return 0;
}

/* The kernel has taken the change: remember it. */
static struct member *note_change(struct epoll_set *s, int op, int fd, struct member *m,
				  const struct epoll_event *event)
{
	struct rec *r = op == EPOLL_CTL_ADD ? sock_live(fd) : NULL;

	if (op == EPOLL_CTL_DEL) {
		if (m)
			drop(s, m);
		return NULL;
	}
	if (!m && r && !sock_flag(r, REC_LISTEN)) {
		m = add(s, fd, r);
		s->seen_lanes--; /* look at it again */
	}
	if (m) {
		wish(s, m, event);
		m->kernel = *event;
		set_dirty(s, m, false);
	}
	return m;
}

static int control_kernel(struct epoll_set *s, int ep, int op, int fd, struct epoll_event *event)
{
	struct member *m = find(s, fd);
	int result;

	if (m && m->gone && op == EPOLL_CTL_ADD) {
		real(epoll_ctl)(ep, EPOLL_CTL_DEL, fd, NULL);
		drop(s, m);
		m = NULL;
	}
	result = real(epoll_ctl)(ep, op, fd, event);
	if (result != 0)
		return result;
	m = note_change(s, op, fd, m, event);
	if (m && s->sleepers > 0)
		wake_sleepers(s, ep, m);
	return 0;
}

int epoll_control(struct epoll_set *s, int ep, int op, int fd, struct epoll_event *event)
{
	struct member *m;
	int result;

	epoll_passing(fd); /* a set inside a set */
	if (!sock_of(fd) || (op != EPOLL_CTL_DEL && (uintptr_t)event < 65536))
		return real(epoll_ctl)(ep, op, fd, event);
	lock_take(&s->lock);
	m = find(s, fd);
	/* What others hold open would stay in the kernel's set when we close it. */
	if (is_lazy(s, m) && (op != EPOLL_CTL_DEL || atomic_load(&m->rec->refs) == 1))
		result = control_member(s, ep, op, m, event);
	else
		result = control_kernel(s, ep, op, fd, event);
	lock_give(&s->lock);
	return result;
}

void epoll_lane_appeared(struct rec *r)
{
	int high = atomic_load(&highest);

	atomic_fetch_add(&epoll_lanes, 1);
	if (!lock_soon(&sets_lock)) /* a set is freed only without it */
		return;
	/* A thread that sleeps already does not know of it. */
	for (int ep = 0; ep <= high; ep++) {
		struct epoll_set *s = atomic_load_explicit(&epoll_table[ep], memory_order_acquire);

		if (!s || atomic_load_explicit(&s->sleepers, memory_order_acquire) == 0 ||
		    !lock_soon(&s->lock))
			continue;
		for (uint32_t i = 0; i < s->used && s->sleepers > 0; i++)
			if (s->member[i].rec == r && !s->member[i].gone)
				wake_sleepers(s, ep, &s->member[i]);
		lock_give(&s->lock);
	}
	lock_give(&sets_lock);
}

/* A member relies on the kernel, which knows nothing of what is in the ring. */
static bool tell_left_over(struct epoll_set *s, int ep, const struct rec *r)
{
	if (!lock_soon(&s->lock))
		return false;
	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec != r || !m->armed || m->gone)
			continue;
		epoll_heat(s, m);
		if (s->sleepers > 0)
			wake_sleepers(s, ep, m);
	}
	lock_give(&s->lock);
	return true;
}

bool epoll_left_over(struct rec *r)
{
	int high = atomic_load(&highest);
	bool ok = lock_soon(&sets_lock); /* a set is freed only without it */

	if (!ok)
		return false;
	for (int ep = 0; ep <= high && ok; ep++) {
		struct epoll_set *s = atomic_load(&epoll_table[ep]);

		ok = !s || tell_left_over(s, ep, r);
	}
	lock_give(&sets_lock);
	return ok;
}

/* --- descriptors that come and go */

static void close_set(int fd, struct epoll_set *s)
{
	bool last;

	lock_take(&sets_lock);
	atomic_store(&epoll_table[fd], NULL);
	last = --s->refs == 0;
	for (size_t i = 0; last && i < SETS; i++)
		if (sets[i] == s)
			sets[i] = NULL;
	lock_give(&sets_lock);
	if (!last)
		return;
	for (uint32_t i = 0; i < s->used; i++)
		if (s->member[i].rec && s->member[i].armed)
			stream_disarm(s->member[i].rec, s->member[i].belled);
	/* A thread that sleeps in it wakes up to its memory: then that stays. */
	if (atomic_load(&s->sleepers) == 0)
		epoll_free(s);
}

/* The kernel forgets it with the last number; while others are open it must be told of what the program took out. */
static void close_member(struct epoll_set *s, int fd, const struct rec *r)
{
	struct member *m;

	if (!lock_soon(&s->lock))
		return;
	m = find(s, fd);
	if (m && m->gone && atomic_load(&r->refs) > 1)
		real(epoll_ctl)(s->ep, EPOLL_CTL_DEL, fd, NULL);
	if (m)
		drop(s, m);
	lock_give(&s->lock);
}

static void close_in_sets(int fd, struct rec *r)
{
	bool locked = lock_soon(&sets_lock);

	for (size_t i = 0; i < atomic_load_explicit(&n_sets, memory_order_acquire); i++)
		if (sets[i] && sets[i]->index[fd])
			close_member(sets[i], fd, r);
	if (locked)
		lock_give(&sets_lock);
}

void epoll_closing(int fd)
{
	struct epoll_set *s;
	struct rec *r;
	bool member = false;

	if ((unsigned)fd >= SOCK_FDS)
		return;
	s = atomic_load_explicit(&epoll_table[fd], memory_order_acquire);
	if (s)
		close_set(fd, s);
	r = atomic_load_explicit(&sock_table[fd], memory_order_acquire);
	if ((uintptr_t)r <= (uintptr_t)SOCK_OTHER)
		return;
	for (size_t i = 0; i < atomic_load_explicit(&n_sets, memory_order_acquire); i++)
		member = member || (sets[i] && sets[i]->index[fd]);
	if (!member)
		return;
	/* The kernel keeps it in the set while another number is open: then it must be right alone. */
	if (atomic_load(&r->refs) > 1)
		sock_pin(r, fd, WHY_NESTED);
	close_in_sets(fd, r);
}

void epoll_duplicated(int from, int to)
{
	struct epoll_set *s;

	if ((unsigned)from >= SOCK_FDS || (unsigned)to >= SOCK_FDS)
		return;
	s = atomic_load(&epoll_table[from]);
	if (!s || !process_is_self())
		return;
	lock_take(&sets_lock);
	s->refs++;
	enter(to, s);
	lock_give(&sets_lock);
}

static void make_exact(struct epoll_set *s, int ep)
{
	lock_take(&s->lock);
	s->exact = true;
	take_bell_down(s, ep);
	epoll_reconcile(s, ep);
	for (uint32_t i = 0; i < s->used; i++) {
		struct member *m = &s->member[i];

		if (m->rec && !sock_flag(m->rec, REC_LISTEN))
			sock_pin(m->rec, m->fd, WHY_NESTED);
	}
	lock_give(&s->lock);
}

void epoll_passing(int fd)
{
	struct epoll_set *s = epoll_of(fd);

	if (s && !s->exact)
		make_exact(s, fd);
}

static void each_set(void (*call)(struct epoll_set *s, int ep))
{
	int high = atomic_load(&highest);

	for (int fd = 0; fd <= high; fd++) {
		struct epoll_set *s = atomic_load_explicit(&epoll_table[fd], memory_order_relaxed);

		if (s)
			call(s, fd);
	}
}

static void reconcile_locked(struct epoll_set *s, int ep)
{
	lock_take(&s->lock);
	for (uint32_t i = 0; i < s->used && s->helds > 0; i++)
		if (s->member[i].rec && s->member[i].held)
			epoll_heat(s, &s->member[i]);
	epoll_reconcile(s, ep);
	lock_give(&s->lock);
}

/* The kernel's sets are shared with a child: what they hold must be the program's wish. */
void epoll_fork_prepare(void)
{
	each_set(reconcile_locked);
}

/* The child's sets are the parent's: it changes nothing behind its back, and rings nobody's bell. */
static void become_guest(struct epoll_set *s, int ep)
{
	(void)ep;
	lock_init(&s->lock);
	s->exact = true;
	s->sleepers = 0;
	s->bell_pid = 0; /* the one in there is the parent's */
	s->colds = s->helds = 0;
	for (uint32_t i = 0; i < s->used; i++)
		s->member[i].armed = s->member[i].cold = s->member[i].held = false;
}

void epoll_exec(void)
{
	each_set(take_bell_down);
}

static void hang_again(struct epoll_set *s, int ep)
{
	if (s->hots + s->colds > 0)
		epoll_hang_bell(s, ep);
}

void epoll_exec_failed(void)
{
	each_set(hang_again);
}

void epoll_forked(void)
{
	lock_init(&sets_lock);
	each_set(become_guest);
}

struct epoll_set *epoll_of(int fd)
{
	if ((unsigned)fd >= SOCK_FDS)
		return NULL;
	return atomic_load_explicit(&epoll_table[fd], memory_order_acquire);
}
