/* SPDX-License-Identifier: MIT */
/* The public headers are C++ too: compiles, links with libflue.so, and connects to nobody. */
#include <flue/flue.h>

#include <cstdio>
#include <cstring>
#include <netinet/in.h>

static bool refuses_a_bad_qp(flue_pd *pd)
{
	flue_qp_attr attr = FLUE_ATTR(flue_qp_attr);

	errno = 0;
	return !pd->ops->create_qp(pd, &attr) && errno == EINVAL;
}

int main()
{
	char memory[64];
	flue_adapter *a = flue_open(nullptr);
	flue_pd *pd = a ? flue_create_pd(a) : nullptr;
	flue_cq *cq = a ? flue_create_cq(a, 8) : nullptr;
	flue_mr *mr = pd ? flue_register(pd, memory, sizeof(memory), FLUE_LOCAL_WRITE) : nullptr;

	if (!mr || !cq || std::strcmp(flue_version(), FLUE_VERSION)) {
		std::perror("flue");
		return 1;
	}
	flue_wc wc;
	uint32_t got = 1;
	bool good = flue_poll(cq, &wc, 1, &got) && got == 0 && refuses_a_bad_qp(pd);
	flue_sge sge = flue_mr_sge(mr, 0, 8);
	good = good && sge.lkey == mr->lkey;
	good = good && flue_deregister(mr) && flue_destroy_cq(cq) && flue_destroy_pd(pd);
	good = good && flue_close(a);
	std::puts(good ? "ok" : "failed");
	return good ? 0 : 1;
}
