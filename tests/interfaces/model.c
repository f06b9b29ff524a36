/* SPDX-License-Identifier: MIT */
/* See model.h. */
#include "model.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

void model_init(struct model *m)
{
	memset(m, 0, sizeof(*m));
	pthread_mutex_init(&m->lock, NULL);
	m->verbose = getenv("INTERFACES_VERBOSE");
}

void model_fini(struct model *m)
{
	for (unsigned i = 0; i < MODEL_MAX; i++)
		free(m->all[i].addresses);
	pthread_mutex_destroy(&m->lock);
}

static void breaks(struct model *m, const char *rule, uint32_t notice,
		   const struct flue_interface *iface)
{
	if (!m->broken[0])
		snprintf(m->broken, sizeof(m->broken), "%s: %s of %u %s, notice %u", rule,
			 flue_interface_notice_name(notice), iface->index, iface->name, m->notices);
}

static bool works(const struct flue_interface *i)
{
	return i->up && i->running;
}

static bool same(const struct flue_interface *a, const struct flue_interface *b)
{
	return a->up == b->up && a->running == b->running && a->mtu == b->mtu &&
	       !strcmp(a->name, b->name) && a->n_addresses == b->n_addresses &&
	       (!a->n_addresses ||
		!memcmp(a->addresses, b->addresses, a->n_addresses * sizeof(*a->addresses)));
}

static void check_change(struct model *m, const struct model_interface *i, uint32_t notice,
			 const struct flue_interface *iface)
{
	if (notice == FLUE_INTERFACE_UP && (works(&i->iface) || !works(iface)))
		breaks(m, "up without coming up", notice, iface);
	if (notice == FLUE_INTERFACE_GOING_DOWN && (!works(&i->iface) || works(iface)))
		breaks(m, "going down without having been up", notice, iface);
	if (notice == FLUE_INTERFACE_GONE && works(&i->iface))
		breaks(m, "gone without going down", notice, iface);
	if (notice == FLUE_INTERFACE_CHANGED &&
	    (same(&i->iface, iface) || works(&i->iface) != works(iface)))
		breaks(m, "nothing or too much changed", notice, iface);
}

static void check_rules(struct model *m, const struct model_interface *i, uint32_t notice,
			const struct flue_interface *iface)
{
	bool first = notice == FLUE_INTERFACE_EXISTING || notice == FLUE_INTERFACE_NEW;

	if (first == i->there)
		breaks(m, first ? "told twice" : "told before it was there", notice, iface);
	if (notice == FLUE_INTERFACE_EXISTING &&
	    (i->told[FLUE_INTERFACE_EXISTING] || i->told[FLUE_INTERFACE_NEW]))
		breaks(m, "existing is for the first", notice, iface);
	if (!first && i->there)
		check_change(m, i, notice, iface);
}

static void keep(struct model_interface *i, uint32_t notice, const struct flue_interface *iface)
{
	size_t size = iface->n_addresses * sizeof(*iface->addresses);

	free(i->addresses);
	i->addresses = malloc(size + 1);
	if (!i->addresses)
		abort();
	if (size)
		memcpy(i->addresses, iface->addresses, size);
	i->iface = *iface;
	i->iface.addresses = i->addresses;
	i->there = notice != FLUE_INTERFACE_GONE;
	i->told[notice]++;
}

static bool is_held(struct model *m)
{
	bool hold;

	pthread_mutex_lock(&m->lock);
	hold = m->hold;
	pthread_mutex_unlock(&m->lock);
	return hold;
}

void model_note(uint32_t notice, const struct flue_interface *iface, void *arg)
{
	struct model *m = arg;

	while (is_held(m))
		usleep(1000);
	pthread_mutex_lock(&m->lock);
	if (m->verbose)
		printf("# %s %u %s mtu %u up %d running %d addresses %u\n",
		       flue_interface_notice_name(notice), iface->index, iface->name, iface->mtu,
		       iface->up, iface->running, iface->n_addresses);
	m->notices++;
	if (iface->index >= MODEL_MAX || iface->size != sizeof(*iface)) {
		breaks(m, "a strange interface", notice, iface);
	} else {
		check_rules(m, &m->all[iface->index], notice, iface);
		keep(&m->all[iface->index], notice, iface);
	}
	pthread_mutex_unlock(&m->lock);
}

void model_hold(struct model *m, bool hold)
{
	pthread_mutex_lock(&m->lock);
	m->hold = hold;
	pthread_mutex_unlock(&m->lock);
}

unsigned model_count(struct model *m, const char *name, uint32_t notice)
{
	unsigned n = 0;

	pthread_mutex_lock(&m->lock);
	for (unsigned i = 0; i < MODEL_MAX; i++)
		if (!strcmp(m->all[i].iface.name, name))
			n += m->all[i].told[notice];
	pthread_mutex_unlock(&m->lock);
	return n;
}

/* Lock held. */
static bool has_address(const struct model_interface *i, int family, const void *octets)
{
	for (uint32_t k = 0; k < i->iface.n_addresses; k++) {
		const struct sockaddr_storage *s = &i->addresses[k];

		if (s->ss_family != family)
			continue;
		if (family == AF_INET &&
		    !memcmp(&((const struct sockaddr_in *)s)->sin_addr, octets, 4))
			return true;
		if (family == AF_INET6 &&
		    !memcmp(&((const struct sockaddr_in6 *)s)->sin6_addr, octets, 16))
			return true;
	}
	return false;
}

bool model_has_address(struct model *m, const char *name, const char *text)
{
	int family = strchr(text, ':') ? AF_INET6 : AF_INET;
	uint8_t octets[16];
	bool has = false;

	inet_pton(family, text, octets);
	pthread_mutex_lock(&m->lock);
	for (unsigned i = 0; i < MODEL_MAX; i++)
		if (m->all[i].there && !strcmp(m->all[i].iface.name, name))
			has |= has_address(&m->all[i], family, octets);
	pthread_mutex_unlock(&m->lock);
	return has;
}

/* An interface, by other means than netlink. */
static bool matches(const struct model_interface *i, unsigned index, const char *name)
{
	struct ifreq flags = { 0 }, mtu = { 0 };
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	bool ok;

	snprintf(flags.ifr_name, sizeof(flags.ifr_name), "%s", name);
	mtu = flags;
	ok = fd >= 0 && !ioctl(fd, SIOCGIFFLAGS, &flags) && !ioctl(fd, SIOCGIFMTU, &mtu);
	if (fd >= 0)
		close(fd);
	return ok && i->there && i->iface.index == index && !strcmp(i->iface.name, name) &&
	       i->iface.up == !!(flags.ifr_flags & IFF_UP) &&
	       i->iface.running == !!(flags.ifr_flags & IFF_RUNNING) &&
	       i->iface.mtu == (uint32_t)mtu.ifr_mtu;
}

/* IPv4 only: whether an IPv6 address can be used yet is not to be had without netlink. */
static bool addresses_match(const struct model *m, const struct ifaddrs *all)
{
	unsigned here = 0, there = 0;

	for (const struct ifaddrs *a = all; a; a = a->ifa_next) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)a->ifa_addr;
		unsigned index = if_nametoindex(a->ifa_name);

		if (!in || in->sin_family != AF_INET)
			continue;
		here++;
		if (index >= MODEL_MAX || !has_address(&m->all[index], AF_INET, &in->sin_addr))
			return false;
	}
	for (unsigned i = 0; i < MODEL_MAX; i++)
		for (uint32_t k = 0; m->all[i].there && k < m->all[i].iface.n_addresses; k++)
			there += m->all[i].addresses[k].ss_family == AF_INET;
	return here == there;
}

static const char *compare(struct model *m)
{
	struct if_nameindex *names = if_nameindex();
	struct ifaddrs *all = NULL;
	const char *complaint = NULL;
	unsigned n = 0, there = 0;

	if (!names || getifaddrs(&all))
		return "the system does not answer";
	for (; names[n].if_index; n++)
		if (names[n].if_index >= MODEL_MAX ||
		    !matches(&m->all[names[n].if_index], names[n].if_index, names[n].if_name))
			complaint = "an interface is missing or differs";
	for (unsigned i = 0; i < MODEL_MAX; i++)
		there += m->all[i].there;
	if (!complaint && n != there)
		complaint = "an interface should be gone";
	if (!complaint && !addresses_match(m, all))
		complaint = "addresses differ";
	freeifaddrs(all);
	if_freenameindex(names);
	return complaint;
}

const char *model_complaint(struct model *m)
{
	const char *complaint;

	pthread_mutex_lock(&m->lock);
	complaint = m->broken[0] ? m->broken : compare(m);
	pthread_mutex_unlock(&m->lock);
	return complaint;
}
