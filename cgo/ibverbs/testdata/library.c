// A library in the place of libibverbs, for tests of what goes wrong before a
// device is there. LIST is how its list of devices fails: an errno, or 0 for an empty list, or
// minus the number of devices, which cannot be opened because of OPEN. WITHOUT_CREATE_QP leaves
// one symbol out.
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ibv_device devices[100];

struct ibv_device **ibv_get_device_list(int *n)
{
	if (LIST > 0) {
		errno = LIST;
		return NULL;
	}
	struct ibv_device **list = calloc(-LIST + 1, sizeof *list);
	*n = -LIST;
	for (int i = 0; i < *n; i++) {
		devices[i] = (struct ibv_device){.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB, .dev_name = "uverbs9"};
		snprintf(devices[i].name, sizeof devices[i].name, "card%d", i);
		list[i] = &devices[i];
	}
	return list;
}

void ibv_free_device_list(struct ibv_device **list) { free(list); }
__be64 ibv_get_device_guid(struct ibv_device *d) { return (void)d, 0; }

struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	(void)d;
	errno = OPEN;
	return NULL;
}

// Of these only the names matter: nothing gets as far as to call them.
#define NEVER(name) \
	void never_##name(void) __asm__("ibv_" #name); \
	void never_##name(void) { abort(); }
NEVER(close_device)
NEVER(get_async_event)
NEVER(ack_async_event)
NEVER(query_device)
NEVER(query_port)
NEVER(query_pkey)
NEVER(alloc_pd)
NEVER(dealloc_pd)
NEVER(dereg_mr)
NEVER(create_comp_channel)
NEVER(destroy_comp_channel)
NEVER(create_cq)
NEVER(destroy_cq)
NEVER(get_cq_event)
NEVER(ack_cq_events)
NEVER(create_srq)
NEVER(modify_srq)
NEVER(destroy_srq)
#ifndef WITHOUT_CREATE_QP
NEVER(create_qp)
#endif
NEVER(modify_qp)
NEVER(query_qp)
NEVER(destroy_qp)
NEVER(create_ah)
NEVER(destroy_ah)
NEVER(reg_mr)
