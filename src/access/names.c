/* SPDX-License-Identifier: MIT */
/* Names for people. */
#include "access/access_priv.h"
#include "wire/fault.h"

#define NAME_OF(table, value) ((value) < sizeof(table) / sizeof((table)[0]) ? (table)[value] : "?")

const char *flue_wc_status_name(uint32_t status)
{
	static const char *const names[FLUE_WC_NSTATUS] = {
		[FLUE_WC_SUCCESS] = "success",
		[FLUE_WC_FLUSHED] = "flushed",
		[FLUE_WC_LOCAL_PROTECTION] = "local protection error",
		[FLUE_WC_LOCAL_LENGTH] = "local length error",
		[FLUE_WC_LOCAL_OPERATION] = "local operation error",
		[FLUE_WC_BIND] = "bind error",
		[FLUE_WC_REMOTE_ACCESS] = "remote access error",
		[FLUE_WC_REMOTE_OPERATION] = "remote operation error",
		[FLUE_WC_FATAL] = "fatal error",
		[FLUE_WC_BAD_RESPONSE] = "bad response",
		[FLUE_WC_LOCAL_ACCESS] = "local access error",
		[FLUE_WC_REMOTE_REQUEST] = "remote invalid request",
		[FLUE_WC_RETRY_EXCEEDED] = "transport retries exceeded",
		[FLUE_WC_RECEIVER_NOT_READY] = "receiver not ready",
		[FLUE_WC_REMOTE_ABORTED] = "remote abort",
		[FLUE_WC_TIMEOUT] = "response timeout",
		[FLUE_WC_GENERAL] = "general error",
	};

	return NAME_OF(names, status);
}

const char *flue_qp_state_name(uint32_t state)
{
	static const char *const names[FLUE_QP_NSTATES] = {
		[FLUE_QP_IDLE] = "Idle",       [FLUE_QP_RTS] = "RTS",
		[FLUE_QP_CLOSING] = "Closing", [FLUE_QP_TERMINATE] = "Terminate",
		[FLUE_QP_ERROR] = "Error",     [FLUE_QP_RESET] = "RESET",
		[FLUE_QP_INIT] = "INIT",       [FLUE_QP_RTR] = "RTR",
		[FLUE_QP_SQD] = "SQD",         [FLUE_QP_SQE] = "SQE",
	};

	return NAME_OF(names, state);
}

const char *flue_qp_type_name(uint32_t type)
{
	static const char *const names[FLUE_QP_NTYPES] = {
		[FLUE_QP_RC] = "RC",
		[FLUE_QP_UC] = "UC",
		[FLUE_QP_UD] = "UD",
	};

	return NAME_OF(names, type);
}

const char *flue_event_name(uint32_t type)
{
	static const char *const names[FLUE_EVENT_NTYPES] = {
		[FLUE_EVENT_NONE] = "none",
		[FLUE_EVENT_REQUEST] = "connection request",
		[FLUE_EVENT_ACCEPTED] = "accepted",
		[FLUE_EVENT_CONNECTED] = "connected",
		[FLUE_EVENT_CONNECT_FAILED] = "connect failed",
		[FLUE_EVENT_DISCONNECTED] = "disconnected",
		[FLUE_EVENT_CQ_ERROR] = "completion queue error",
		[FLUE_EVENT_SRQ_LIMIT] = "shared receive queue limit",
		[FLUE_EVENT_LAST_RECEIVE] = "last receive",
		[FLUE_EVENT_ESTABLISHED] = "communication established",
		[FLUE_EVENT_SQ_DRAINED] = "send queue drained",
		[FLUE_EVENT_QP_ERROR] = "queue pair error",
		[FLUE_EVENT_QP_REQUEST] = "invalid request of the peer",
		[FLUE_EVENT_QP_ACCESS] = "access violation of the peer",
		[FLUE_EVENT_PATH_MIGRATED] = "path migrated",
		[FLUE_EVENT_PATH_FAILED] = "path migration failed",
		[FLUE_EVENT_SRQ_ERROR] = "shared receive queue error",
		[FLUE_EVENT_PORT_UP] = "port up",
		[FLUE_EVENT_PORT_DOWN] = "port down",
		[FLUE_EVENT_ADDRESSES] = "addresses changed",
		[FLUE_EVENT_PKEYS] = "partition keys changed",
		[FLUE_EVENT_PORT_CHANGED] = "port changed",
		[FLUE_EVENT_ADAPTER_ERROR] = "adapter error",
	};

	return NAME_OF(names, type);
}

const char *flue_close_reason_name(uint32_t reason)
{
	static const char *const names[FLUE_CLOSE_NREASONS] = {
		[FLUE_CLOSE_GRACEFUL] = "graceful close",
		[FLUE_CLOSE_BAD] = "bad close",
		[FLUE_CLOSE_RESET] = "reset by peer",
		[FLUE_CLOSE_LOST] = "connection lost",
		[FLUE_CLOSE_ABORTED] = "aborted",
		[FLUE_CLOSE_TERMINATED] = "terminated by peer",
		[FLUE_CLOSE_FAULT] = "protocol fault",
		[FLUE_CLOSE_LOCAL] = "local failure",
	};

	return NAME_OF(names, reason);
}

const char *flue_fault_name(uint32_t detail)
{
	return wire_fault_name(detail | WIRE_FAULT_BIT);
}

const char *flue_version(void)
{
	return FLUE_VERSION;
}

const char *flue_socket_state_name(uint32_t state)
{
	static const char *const names[FLUE_SOCKET_NSTATES] = {
		[FLUE_SOCKET_STREAMING] = "Streaming",
		[FLUE_SOCKET_TRANSITION] = "TransitionInProgress",
		[FLUE_SOCKET_RDMA] = "Rdma",
	};

	return NAME_OF(names, state);
}

const char *flue_offload_state_name(uint32_t state)
{
	static const char *const names[FLUE_OFFLOAD_NSTATES] = {
		[FLUE_OFFLOAD_NOT_READY] = "NotReadyToOffload",
		[FLUE_OFFLOAD_RESERVING] = "ResourceReservationInProgress",
		[FLUE_OFFLOAD_READY] = "ReadyToOffload",
		[FLUE_OFFLOAD_WAIT_FIRST_RECV] = "WaitForFirstRecvBuffer",
		[FLUE_OFFLOAD_IN_PROGRESS] = "OffloadInProgress",
		[FLUE_OFFLOAD_DONE] = "Offloaded",
	};

	return NAME_OF(names, state);
}

const char *flue_reserve_reason_name(uint32_t reason)
{
	static const char *const names[FLUE_RESERVE_NREASONS] = {
		[FLUE_RESERVE_OK] = "granted",
		[FLUE_RESERVE_QUEUE_TOO_LONG] = "queue too long",
		[FLUE_RESERVE_READS_TOO_MANY] = "too many Reads",
		[FLUE_RESERVE_CQ_FULL] = "no completion queue",
		[FLUE_RESERVE_NO_ADOPT] = "not an RNIC: cannot take over streams",
		[FLUE_RESERVE_NO_PD] = "no protection domain",
		[FLUE_RESERVE_NO_QP] = "no queue pair",
		[FLUE_RESERVE_LOST] = "connection lost",
	};

	return NAME_OF(names, reason);
}
