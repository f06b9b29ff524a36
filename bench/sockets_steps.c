/* SPDX-License-Identifier: MIT */
/*
 * Counts what a call costs: instructions of the program and system calls, exactly, where no counter of the
 * processor can be had. bench/compare runs it with the preload library and without it.
 *
 *   sockets_steps WALK     prints one line of JSON: per call, on average
 *   sockets_steps --list   the names of the walks
 *
 * It steps through the walk (sockets_walk.h) instruction by instruction. That is ten thousand times slower than
 * running, and a library that looks at the clock would see that. So from the first mark on the walk has a clock of
 * its own, which goes on by PS_STEP with every instruction and by PS_CALL with every system call. What the kernel
 * does is not counted.
 */
#include "sockets_walk.h"

#include <errno.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PS_STEP       333    /* picoseconds */
#define PS_CALL       300000 /* a cheap one */
#define CYCLES_PER_NS 3
/* The kernel's clock function is not walked through: it reads again if the clock is just being set. */
#define CLOCK_STEPS 50
#define CLOCKS      8
#define PAGE        4096
#define PAGES       64 /* of code, remembered */

#if defined(__x86_64__)

struct page {
	uint64_t start;
	uint8_t octets[PAGE + sizeof(uint32_t)];
};

struct count {
	pid_t walk;
	struct user_regs_struct regs; /* of the walk, where it is now */
	uint64_t instructions, calls; /* those that count */
	uint64_t ps;                  /* since the first mark */
	uint64_t cycles;              /* at the first mark */
	struct timespec since[CLOCKS];
	uintptr_t clock; /* the function's address */
	bool counting;
	struct page pages[PAGES];
};

static _Noreturn void fail(const char *what)
{
	fprintf(stderr, "sockets_steps: %s: %s\n", what, strerror(errno));
	exit(1);
}

static void tell(struct count *c, uint64_t instructions, uint64_t calls)
{
	c->ps += instructions * PS_STEP + calls * PS_CALL;
	if (c->counting) {
		c->instructions += instructions;
		c->calls += calls;
	}
}

static void set_registers(struct count *c)
{
	if (ptrace(PTRACE_SETREGS, c->walk, NULL, &c->regs))
		fail("PTRACE_SETREGS");
}

static void get_registers(struct count *c)
{
	if (ptrace(PTRACE_GETREGS, c->walk, NULL, &c->regs))
		fail("PTRACE_GETREGS");
}

/* The first octets of an instruction. Code does not change, so its pages are fetched once. */
static uint32_t code_at(struct count *c, uint64_t at)
{
	struct page *page = &c->pages[at / PAGE % PAGES];
	uint64_t start = at & ~(uint64_t)(PAGE - 1);
	uint32_t code;

	if (page->start != start) {
		struct iovec ours = { page->octets, sizeof(page->octets) };
		struct iovec theirs = { (void *)start, sizeof(page->octets) };

		/* There may be no page behind the last. */
		memset(page->octets, 0, sizeof(page->octets));
		if (process_vm_readv(c->walk, &ours, 1, &theirs, 1, 0) < PAGE)
			fail("process_vm_readv");
		page->start = start;
	}
	memcpy(&code, page->octets + (at - start), sizeof(code));
	return code;
}

static void begin(struct count *c)
{
	c->clock = c->regs.rdi;
	c->cycles = __builtin_ia32_rdtsc();
	for (clockid_t id = 0; id < CLOCKS; id++)
		clock_gettime(id, &c->since[id]);
}

/* In place of the kernel's function: what it would store, and the return to its caller. */
static void answer_clock(struct count *c)
{
	uint64_t id = c->regs.rdi < CLOCKS ? c->regs.rdi : CLOCK_MONOTONIC, ns;
	struct timespec now = c->since[id];
	struct iovec ours = { &now, sizeof(now) }, theirs = { (void *)c->regs.rsi, sizeof(now) };

	tell(c, CLOCK_STEPS, 0);
	ns = (uint64_t)now.tv_nsec + c->ps / 1000;
	now.tv_sec += (time_t)(ns / 1000000000);
	now.tv_nsec = (long)(ns % 1000000000);
	if (process_vm_writev(c->walk, &ours, 1, &theirs, 1, 0) != sizeof(now))
		fail("process_vm_writev");
	errno = 0;
	c->regs.rip = (uint64_t)ptrace(PTRACE_PEEKDATA, c->walk, c->regs.rsp, NULL);
	if (errno)
		fail("PTRACE_PEEKDATA");
	c->regs.rsp += 8;
	c->regs.rax = 0;
	set_registers(c);
}

static void answer_cycles(struct count *c, unsigned length)
{
	uint64_t cycles = c->cycles + c->ps / 1000 * CYCLES_PER_NS;

	tell(c, 1, 0);
	c->regs.rax = (uint32_t)cycles;
	c->regs.rdx = cycles >> 32;
	if (length == 3)
		c->regs.rcx = 0; /* rdtscp tells the processor's number as well */
	c->regs.rip += length;
	set_registers(c);
}

static void step(struct count *c, bool call)
{
	uint64_t before = c->regs.rip;
	int status;

	if (ptrace(PTRACE_SINGLESTEP, c->walk, NULL, NULL) || waitpid(c->walk, &status, 0) < 0)
		fail("PTRACE_SINGLESTEP");
	if (!WIFSTOPPED(status) || WSTOPSIG(status) != SIGTRAP) {
		fprintf(stderr, "sockets_steps: the walk has fallen (status %x)\n", status);
		exit(1);
	}
	get_registers(c);
	/* A repeated string instruction stops after each of its rounds; it is one. */
	if (c->regs.rip != before)
		tell(c, 1, call);
}

/* Goes on from MARK_BEGIN to MARK_END. */
static void look(struct count *c)
{
	for (;;) {
		uint32_t code = code_at(c, c->regs.rip);

		if ((code & 0xff) == 0xcc) { /* int3 */
			if (c->regs.rax == MARK_END)
				return;
			c->counting = c->regs.rax == MARK_COUNT;
			c->regs.rip++;
			set_registers(c);
		} else if (c->regs.rip == c->clock) {
			answer_clock(c);
		} else if ((code & 0xffff) == 0x310f) { /* rdtsc */
			answer_cycles(c, 2);
		} else if ((code & 0xffffff) == 0xf9010f) { /* rdtscp */
			answer_cycles(c, 3);
		} else {
			step(c, (code & 0xffff) == 0x050f); /* syscall */
		}
	}
}

/* All on one processor: one of them runs at a time anyhow, and need not be woken on another. */
static void stay(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	sched_setaffinity(0, sizeof(set), &set); /* else it is only slower */
}

static pid_t start(const char *name, const char *program)
{
	pid_t pid;

	stay();
	pid = fork();
	if (pid < 0)
		fail("fork");
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		setenv("LD_BIND_NOW", "1", 1); /* finding a function is not what is counted */
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			fail("PTRACE_TRACEME");
		execl(program, program, "--walk", name, (char *)NULL);
		fail(program);
	}
	return pid;
}

/* True when a mark was met; false when it has ended well. */
static bool next_mark(struct count *c)
{
	int status, signal = 0;

	for (;;) {
		if (ptrace(PTRACE_CONT, c->walk, NULL, signal) || waitpid(c->walk, &status, 0) < 0)
			fail("PTRACE_CONT");
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			return false;
		if (!WIFSTOPPED(status)) {
			fprintf(stderr, "sockets_steps: the walk ended with status %x\n", status);
			exit(1);
		}
		if (WSTOPSIG(status) == SIGTRAP)
			break;
		signal = WSTOPSIG(status);
	}
	get_registers(c);
	return true;
}

static int count(const char *name, const char *program)
{
	static struct count c;
	bool looked = false;
	int status;

	c.walk = start(name, program);
	/* Its first stop is behind exec. */
	if (waitpid(c.walk, &status, 0) < 0 || !WIFSTOPPED(status) ||
	    ptrace(PTRACE_SETOPTIONS, c.walk, NULL, PTRACE_O_EXITKILL))
		fail("ptrace");
	while (next_mark(&c)) {
		if (c.regs.rax != MARK_BEGIN)
			continue; /* the breakpoint that look() has left for us to run over */
		begin(&c);
		look(&c);
		looked = true;
	}
	if (!looked || c.instructions == 0) {
		fprintf(stderr, "sockets_steps: no mark was met\n");
		return 1;
	}
	printf("{\"instructions\": %.2f, \"calls\": %.2f}\n",
	       (double)c.instructions / walk_turns(name), (double)c.calls / walk_turns(name));
	return 0;
}

#else

static int count(const char *name, const char *program)
{
	(void)name, (void)program;
	fprintf(stderr, "sockets_steps: counts on x86-64 only\n");
	return 77;
}

#endif

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--peer"))
		walk_peer();
	if (argc == 3 && !strcmp(argv[1], "--walk") && walk_turns(argv[2]))
		walk(argv[2], argv[0]);
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		printf("%s\n", walk_names());
		return 0;
	}
	if (argc != 2 || !walk_turns(argv[1])) {
		fprintf(stderr, "usage: sockets_steps --list | WALK\nwalks: %s\n", walk_names());
		return 2;
	}
	alarm(WALK_HANG);
	return count(argv[1], argv[0]);
}
