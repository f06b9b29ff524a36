/* SPDX-License-Identifier: MIT */
/*
 * Names by which a program asks socket(2) for more than AF_INET does, when it runs under Flue's
 * sockets door (flue-run(1)). No library has to be linked: the door hooks socket() and makes an
 * ordinary TCP socket of it, so bind(), connect() and all others see an AF_INET or AF_INET6 socket;
 * addresses may carry either family.
 *
 *   socket(AF_INET_OFFLOAD, SOCK_STREAM, 0)       offload wanted, as early as can be, without
 *                                                 waiting until it seems worth it
 *   socket(AF_INET, SOCK_STREAM, IPPROTO_SDP)     the same, and by no other protocol than this
 *   socket(AF_INET_DIRECT, SOCK_STREAM, 0)        the kernel's TCP, whatever the rules say
 *
 * Where offload cannot be had, the connection runs on TCP. So it does when a rule says "use tcp":
 * the last word is with the one who runs a program, not with the one who wrote it.
 *
 * Without the door the kernel answers EAFNOSUPPORT to the families and EINVAL to the protocol, so
 * a program can try and then ask for AF_INET.
 *
 * The numbers. socket() takes an int, but a family must also fit sa_family_t, 16 bits; and Linux
 * keeps a socket's protocol in 16 bits. Linux numbers families from 0 up and knows 46 of them
 * (AF_MCTP is 45); socket protocols of 256 and more that are no IP protocol are IPPROTO_SMC (256) and
 * IPPROTO_MPTCP (262), and the kernel refuses all from 263 on. Ours are near the other end, 0xf100
 * and up, with the number of the real family or protocol in the low octet. The numbers of the
 * earlier offload families are no choice: 27, AF_INET_SDP of OFED, is AF_IB today, and 257,
 * Solaris's number for SDP, may be Linux's next.
 */
#ifndef FLUE_OFFLOAD_H
#define FLUE_OFFLOAD_H

#include <netinet/in.h>
#include <sys/socket.h>

#ifndef AF_INET_OFFLOAD
#define AF_INET_OFFLOAD  0xf102 /* 0xf100 + AF_INET */
#define AF_INET6_OFFLOAD 0xf10a /* 0xf100 + AF_INET6 */
#define AF_INET_DIRECT   0xf202 /* 0xf200 + AF_INET */
#define AF_INET6_DIRECT  0xf20a /* 0xf200 + AF_INET6 */
#define PF_INET_OFFLOAD  AF_INET_OFFLOAD
#define PF_INET6_OFFLOAD AF_INET6_OFFLOAD
#define PF_INET_DIRECT   AF_INET_DIRECT
#define PF_INET6_DIRECT  AF_INET6_DIRECT
#endif

#ifndef IPPROTO_SDP
#define IPPROTO_SDP 0xf106 /* 0xf100 + IPPROTO_TCP */
#endif

#endif
