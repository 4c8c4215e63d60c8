#include "comm/comm.h"

void comm_destroy(struct comm **comm)
{
	if (!*comm) return;
	(*comm)->vt->destroy(*comm);
	*comm = NULL;
}
