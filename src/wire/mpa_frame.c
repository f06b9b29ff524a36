/* SPDX-License-Identifier: MIT */
/*
 * Start-up frames, RFC 5044 section 7.1 and RFC 6581 section 6:
 *
 *   0      16     17   18         20
 *   key    flags  rev  PD_Length  private data
 *
 * With rev 2 and S the private data begin with one word:  A B IRD(14)  C D ORD(14).
 */
#include <errno.h>
#include <string.h>

#include "base/bytes.h"
#include "wire/mpa.h"

#define KEY_LEN   16
#define OFF_FLAGS 16
#define OFF_REV   17
#define OFF_PDLEN 18

/* The enhanced word. */
#define WORD_A     0x80000000u /* peer to peer */
#define WORD_B     0x40000000u /* RTR: Send */
#define WORD_C     0x00008000u /* RTR: Write */
#define WORD_D     0x00004000u /* RTR: Read */
#define DEPTH_MASK 0x3fffu

/* The identity behind it, in full service. */
#define MAGIC_LEN    4
#define OFF_VERSION  4
#define OFF_QPN      8
#define OFF_PEER_QPN 12
#define OFF_PSN      16
#define OFF_LOCAL    20
static const char magic[MAGIC_LEN + 1] = "Flue";

static const char request_key[KEY_LEN + 1] = "MPA ID Req Frame";
static const char reply_key[KEY_LEN + 1] = "MPA ID Rep Frame";

static uint32_t make_word(const struct mpa_frame *f)
{
	uint32_t word = (uint32_t)f->ird << 16 | f->ord;

	/* Without A the other flags must be zero. */
	if (f->p2p) {
		word |= WORD_A;
		word |= f->rtr & MPA_RTR_SEND ? WORD_B : 0;
		word |= f->rtr & MPA_RTR_WRITE ? WORD_C : 0;
		word |= f->rtr & MPA_RTR_READ ? WORD_D : 0;
	}
	return word;
}

static void read_word(struct mpa_frame *f, uint32_t word)
{
	f->ird = word >> 16 & DEPTH_MASK;
	f->ord = word & DEPTH_MASK;
	f->p2p = word & WORD_A;
	/* Without A they must be ignored, so nobody gets to see them. */
	if (!f->p2p)
		return;
	f->rtr = (uint8_t)((word & WORD_B ? MPA_RTR_SEND : 0) |
			   (word & WORD_C ? MPA_RTR_WRITE : 0) |
			   (word & WORD_D ? MPA_RTR_READ : 0));
}

/* Octets of private data before those of the program. */
static size_t own_len(uint8_t flags, uint8_t rev)
{
	if (!(flags & MPA_FLAG_ENHANCED))
		return 0;
	return MPA_ENHANCED_LEN + (rev == MPA_REV_FULL ? MPA_IDENTITY_LEN : 0);
}

static void put_local(const struct mpa_local *l, uint8_t *buf)
{
	memcpy(buf, l->box, sizeof(l->box));
	put_be64(buf + 8, l->name);
	put_be32(buf + 16, l->pid);
	put_be32(buf + 20, l->engine);
	put_be32(buf + 24, l->circuit);
	put_be32(buf + 28, l->offered);
}

static void read_local(struct mpa_local *l, const uint8_t *buf)
{
	memcpy(l->box, buf, sizeof(l->box));
	l->name = get_be64(buf + 8);
	l->pid = get_be32(buf + 16);
	l->engine = get_be32(buf + 20);
	l->circuit = get_be32(buf + 24);
	l->offered = get_be32(buf + 28) == 1;
}

static void put_identity(const struct mpa_identity *i, uint8_t buf[MPA_IDENTITY_LEN])
{
	memset(buf, 0, MPA_IDENTITY_LEN);
	memcpy(buf, magic, MAGIC_LEN);
	buf[OFF_VERSION] = i->version;
	put_be32(buf + OFF_QPN, i->qpn);
	put_be32(buf + OFF_PEER_QPN, i->peer_qpn);
	put_be32(buf + OFF_PSN, i->psn);
	put_local(&i->local, buf + OFF_LOCAL);
}

static void read_identity(struct mpa_identity *i, const uint8_t buf[MPA_IDENTITY_LEN])
{
	i->version = buf[OFF_VERSION];
	i->qpn = get_be32(buf + OFF_QPN);
	i->peer_qpn = get_be32(buf + OFF_PEER_QPN);
	i->psn = get_be32(buf + OFF_PSN);
	read_local(&i->local, buf + OFF_LOCAL);
}

int mpa_frame_encode(const struct mpa_frame *f, uint8_t *buf, size_t cap)
{
	bool enhanced = f->flags & MPA_FLAG_ENHANCED;
	size_t pd_len = f->data_len + own_len(f->flags, f->rev);
	uint8_t *pos = buf + MPA_FRAME_LEN;

	if (enhanced && (f->rev < 2 || f->ird > DEPTH_MASK || f->ord > DEPTH_MASK))
		return -EINVAL;
	if (pd_len > MPA_PD_MAX || MPA_FRAME_LEN + pd_len > cap)
		return -EMSGSIZE;
	memcpy(buf, f->reply ? reply_key : request_key, KEY_LEN);
	buf[OFF_FLAGS] = f->flags;
	buf[OFF_REV] = f->rev;
	put_be16(buf + OFF_PDLEN, (uint16_t)pd_len);
	if (enhanced) {
		put_be32(pos, make_word(f));
		if (f->rev == MPA_REV_FULL)
			put_identity(&f->identity, pos + MPA_ENHANCED_LEN);
		pos += own_len(f->flags, f->rev);
	}
	if (f->data_len)
		memcpy(pos, f->data, f->data_len);
	return (int)(MPA_FRAME_LEN + pd_len);
}

/* S belongs to revision 2 and later; before, it was one of the bits not to be looked at. */
static bool is_enhanced(uint8_t flags, uint8_t rev)
{
	return flags & MPA_FLAG_ENHANCED && rev >= 2;
}

/* Whether `len` octets can be the beginning of a frame. Each is judged as soon as it is there. */
static bool is_plausible(const uint8_t *buf, size_t len, bool reply)
{
	size_t key_len = len < KEY_LEN ? len : KEY_LEN;
	size_t pd_len, pd_min;

	if (memcmp(buf, reply ? reply_key : request_key, key_len) != 0)
		return false;
	if (len > OFF_FLAGS && !reply && buf[OFF_FLAGS] & MPA_FLAG_REJECT)
		return false;
	if (len > OFF_PDLEN && buf[OFF_PDLEN] > MPA_PD_MAX >> 8)
		return false;
	if (len < MPA_FRAME_LEN)
		return true;
	pd_len = get_be16(buf + OFF_PDLEN);
	pd_min = is_enhanced(buf[OFF_FLAGS], buf[OFF_REV]) ? own_len(buf[OFF_FLAGS], buf[OFF_REV])
							   : 0;
	return pd_len >= pd_min && pd_len <= MPA_PD_MAX;
}

int mpa_frame_decode(struct mpa_frame *f, const uint8_t *buf, size_t len, bool reply)
{
	size_t pd_len;

	if (len && !is_plausible(buf, len, reply))
		return -EPROTO;
	if (len < MPA_FRAME_LEN)
		return -EAGAIN;
	pd_len = get_be16(buf + OFF_PDLEN);
	if (len < MPA_FRAME_LEN + pd_len)
		return -EAGAIN;
	memset(f, 0, sizeof(*f));
	f->reply = reply;
	f->rev = buf[OFF_REV];
	f->flags = buf[OFF_FLAGS];
	f->data = buf + MPA_FRAME_LEN;
	f->data_len = (uint16_t)pd_len;
	if (is_enhanced(f->flags, f->rev)) {
		size_t own = own_len(f->flags, f->rev);

		read_word(f, get_be32(f->data));
		if (own > MPA_ENHANCED_LEN) {
			if (memcmp(f->data + MPA_ENHANCED_LEN, magic, MAGIC_LEN) != 0)
				return -EPROTO;
			read_identity(&f->identity, f->data + MPA_ENHANCED_LEN);
		}
		f->data += own;
		f->data_len = (uint16_t)(f->data_len - own);
	} else {
		f->flags &= (uint8_t)~MPA_FLAG_ENHANCED;
	}
	return (int)(MPA_FRAME_LEN + pd_len);
}
