/*
 * Preloaded into the guest's programs: lets no network input in between while rdma_accept() runs.
 *
 * siw (6.1) sends its MPA Reply in siw_accept() first and installs the receive callback of the socket
 * after that. An FPDU arriving in between stays in the socket unseen until more bytes come, so that
 * a client that sends one message and waits for the answer hangs. Between real machines the gap is
 * hard to hit; a host at full speed against an emulated guest hits it in one of three connections.
 *
 * siw_accept() runs in the caller's thread. While it does, this thread has the processor that
 * handles the network card's interrupts (init binds them to CPU 0; the threadirqs boot option makes
 * them threads of FIFO priority 50) for itself. Only the scheduling differs, not one byte of siw or
 * of the programs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>

#define ABOVE_IRQ_THREADS 60

struct rdma_cm_id;
struct rdma_conn_param;

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param);

int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *param)
{
	int (*next)(struct rdma_cm_id *, struct rdma_conn_param *) = dlsym(RTLD_NEXT,
									   "rdma_accept");
	struct sched_param high = { .sched_priority = ABOVE_IRQ_THREADS }, normal = { 0 };
	cpu_set_t irq_cpu, before;
	int rc;

	CPU_ZERO(&irq_cpu);
	CPU_SET(0, &irq_cpu);
	sched_getaffinity(0, sizeof(before), &before);
	sched_setaffinity(0, sizeof(irq_cpu), &irq_cpu);
	sched_setscheduler(0, SCHED_FIFO, &high);
	rc = next(id, param);
	sched_setscheduler(0, SCHED_OTHER, &normal);
	sched_setaffinity(0, sizeof(before), &before);
	return rc;
}
