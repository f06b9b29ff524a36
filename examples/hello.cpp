/* SPDX-License-Identifier: MIT */
/* hello.c once more, in C++: errors are exceptions, and what is made is destroyed by itself, last made first. */
#include <algorithm>
#include <cerrno>
#include <iostream>
#include <memory>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include <flue/flue.h>
#include <netinet/in.h>

template <typename T> static T must(T result, const char *what)
{
	if (!result)
		throw std::system_error(errno, std::generic_category(), what);
	return result;
}

/* Objects of Flue that a scope owns. */
struct destroyer {
	void operator()(flue_adapter *o) const
	{
		flue_close(o);
	}
	void operator()(flue_pd *o) const
	{
		flue_destroy_pd(o);
	}
	void operator()(flue_mr *o) const
	{
		flue_deregister(o);
	}
	void operator()(flue_cq *o) const
	{
		flue_destroy_cq(o);
	}
	void operator()(flue_qp *o) const
	{
		flue_destroy_qp(o);
	}
	void operator()(flue_listener *o) const
	{
		o->ops->destroy(o);
	}
};
template <typename T> using owned = std::unique_ptr<T, destroyer>;
template <typename T> static owned<T> own(T *made, const char *what)
{
	return owned<T>(must(made, what));
}

static void wait_for(flue_cq *cq, int completions)
{
	while (completions > 0) {
		flue_wc wc;
		uint32_t got = 0;

		must(flue_wait(cq, -1) && flue_poll(cq, &wc, 1, &got), "wait");
		if (got && wc.status != FLUE_WC_SUCCESS)
			throw std::runtime_error(flue_wc_status_name(wc.status));
		completions -= static_cast<int>(got);
	}
}

static owned<flue_qp> make_qp(flue_pd *pd, flue_cq *cq)
{
	flue_qp_attr attr = FLUE_ATTR(flue_qp_attr);

	attr.send_cq = attr.recv_cq = cq;
	attr.sq_depth = attr.rq_depth = 4;
	return own(pd->ops->create_qp(pd, &attr), "create_qp");
}

/* One thread plays both parts, so connect() must not wait for accept(). */
static void connect(flue_adapter *adapter, flue_qp *client, flue_qp *server)
{
	sockaddr_in here = sockaddr_in();
	here.sin_family = AF_INET;
	here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	flue_listen_attr listen = FLUE_ATTR(flue_listen_attr);
	listen.local = reinterpret_cast<sockaddr *>(&here);
	listen.local_len = sizeof(here);
	owned<flue_listener> door = own(adapter->ops->listen(adapter, &listen), "listen");

	flue_conn_attr to = FLUE_ATTR(flue_conn_attr);
	to.flags = FLUE_CONN_ASYNC;
	to.remote = reinterpret_cast<sockaddr *>(&door->local);
	to.remote_len = sizeof(here);
	must(client->ops->connect(client, &to), "connect");
	flue_conn_request *request = must(door->ops->get_request(door.get(), 5000), "get_request");
	must(request->ops->accept(request, server, nullptr), "accept");
}

static std::string tell(const std::string &words)
{
	std::vector<char> mem(2 * words.size());
	owned<flue_adapter> adapter = own(flue_open(nullptr), "open");
	owned<flue_pd> pd = own(flue_create_pd(adapter.get()), "create_pd");
	owned<flue_mr> mr = own(flue_register(pd.get(), mem.data(), mem.size(), FLUE_LOCAL_WRITE),
				"register");
	owned<flue_cq> cq = own(flue_create_cq(adapter.get(), 16), "create_cq");
	owned<flue_qp> client = make_qp(pd.get(), cq.get()), server = make_qp(pd.get(), cq.get());
	uint32_t length = static_cast<uint32_t>(words.size());

	connect(adapter.get(), client.get(), server.get());
	std::copy(words.begin(), words.end(), mem.begin());
	flue_sge from = flue_mr_sge(mr.get(), 0, length),
		 into = flue_mr_sge(mr.get(), length, length);
	flue_recv_wr receive = flue_recv_wr();
	receive.sg = &into;
	receive.n_sg = 1;
	must(flue_post_recv(server.get(), &receive), "post_recv");
	flue_send_wr send = flue_send_wr();
	send.op = FLUE_WR_SEND;
	send.flags = FLUE_SIGNALED;
	send.sg = &from;
	send.n_sg = 1;
	must(flue_post_send(client.get(), &send), "post_send");
	wait_for(cq.get(), 2); /* it completes at both ends */
	must(flue_disconnect(client.get()), "disconnect");
	return std::string(mem.begin() + length, mem.end());
}

int main()
{
	try {
		const std::string words = "hello, memory of another";
		const std::string heard = tell(words);

		std::cout << heard << std::endl;
		return heard == words ? 0 : 1;
	} catch (const std::exception &e) {
		std::cerr << "hello: " << e.what() << std::endl;
		return 1;
	}
}
