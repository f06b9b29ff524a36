/* SPDX-License-Identifier: MIT */
/* Addresses of peers: IPv4 and IPv6, and IPv4 within IPv6, which sockets of both kinds use. */
#ifndef FLUE_RNIC_ADDRESS_H
#define FLUE_RNIC_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* IPv4 in an IPv6 address becomes IPv4. */
struct sockaddr_storage address_plain(const struct sockaddr_storage *a);
/* The other way round. */
struct sockaddr_storage address_mapped(const struct sockaddr_storage *a);
/* A plain copy without a port. -EINVAL: neither IPv4 nor IPv6, or too short. */
int address_keep(struct sockaddr_storage *to, const struct sockaddr *from, socklen_t len);
bool address_is_same_host(const struct sockaddr_storage *x, const struct sockaddr_storage *y);
bool address_is_group(const struct sockaddr_storage *a);
socklen_t address_len(const struct sockaddr_storage *a);
/* The octets of the address itself: 4 or 16. */
const uint8_t *address_octets(const struct sockaddr_storage *a);
/* `a` has a family: sets them, and of IPv6 the scope. */
void address_set_octets(struct sockaddr_storage *a, const uint8_t *octets, uint32_t scope);
uint16_t address_port(const struct sockaddr_storage *a);
void address_set_port(struct sockaddr_storage *a, uint16_t port);

#endif
