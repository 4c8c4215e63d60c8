/* connect.c: may these ranks' devices use each other's memory? Checked both ways and proved (contract C7): every rank writes a pattern into
 * every peer's memory with the stores that the collectives use, and afterwards both read it, the owner its own memory and the writer the
 * peer's. A driver that says yes while writes get lost on the way is found here, before the first collective waits for them.
 */
#include "comm/gpu/connect.h"

#include <stdio.h>

#include "comm/gpu/p2p.h"
#include "device/gpu/device.h"

#define PATTERN_WORDS 1024 /* of each writer */

/* What a rank shows of itself, and of the proof. */
struct face {
	uint32_t *pattern; /* [ranks][PATTERN_WORDS], in its device's memory */
	int32_t ordinal;
};

static uint32_t pattern_seed(int from, int to)
{
	return (uint32_t)(from * P2P_MAX_RANKS + to + 1) << 16;
}

static enum status exchange_faces(const struct link *link, const struct face *mine, struct face *all, struct error *err)
{
	struct collective_desc desc = {.op = COLLECTIVE_SETUP, .count = sizeof *mine};
	return group_exchange(link->group, link->rank, &desc, mine, all, err);
}

static enum status sync_link(const struct link *link, struct error *err)
{
	return link->stream->vt->stream_sync(link->stream, group_deadline(link->group), group_abort_flag(link->group), err);
}

/* Peer access from this rank's device to all others, by what the driver says. */
static bool enable_peers(const struct link *link, const struct face *faces, char why[TRANSPORT_WHY_BYTES])
{
	const int mine = faces[link->rank].ordinal;
	for (int r = 0; r < link->world_size; r++) {
		const int other = faces[r].ordinal;
		int can = 0;
		if (other == mine) continue;
		gpu_error code = gpu_peer_can(&can, mine, other);
		if (code == GPU_OK && can) code = gpu_peer_enable(other);
		if (code == GPU_PEER_ALREADY) {
			(void)gpu_last_error();
			code = GPU_OK;
		}
		if (code == GPU_OK && can) continue;
		(void)gpu_last_error();
		snprintf(why, TRANSPORT_WHY_BYTES, "device %d cannot use the memory of device %d%s%s", mine, other, code == GPU_OK ? "" : ": ",
		         code == GPU_OK ? "" : gpu_error_text(code));
		return false;
	}
	return true;
}

static enum status count_wrong(const struct link *link, const uint32_t *from, int writer, int owner, uint32_t *bad, uint32_t *count, struct error *err)
{
	const struct gpu_context *context = gpu_context(link->stream);
	TRY(gpu_check(gpu_memset_async(bad, 0, sizeof *bad, context->stream), "peer proof", err));
	TRY(gpu_check(p2p_launch_pattern_check(from, PATTERN_WORDS, pattern_seed(writer, owner), bad, context->stream), "peer proof", err));
	TRY(link->stream->vt->copy(link->stream, count, bad, sizeof *count, COPY_TO_HOST, err));
	return sync_link(link, err);
}

/* `bad`: a word of own device memory. */
static enum status prove(const struct link *link, const struct face *faces, uint32_t *bad, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	const int me = link->rank;
	for (int r = 0; r < link->world_size; r++)
		if (r != me)
			TRY(gpu_check(p2p_launch_pattern_write(faces[r].pattern + me * PATTERN_WORDS, PATTERN_WORDS, pattern_seed(me, r), gpu_context(link->stream)->stream),
			              "peer proof", err));
	TRY(sync_link(link, err));
	struct collective_desc desc = {.op = COLLECTIVE_SETUP};
	TRY(group_meet(link->group, me, &desc, err));
	for (int r = 0; r < link->world_size; r++) {
		uint32_t wrong = 0;
		if (r == me) continue;
		TRY(count_wrong(link, faces[me].pattern + r * PATTERN_WORDS, r, me, bad, &wrong, err));
		if (wrong && *yes)
			snprintf(why, TRANSPORT_WHY_BYTES, "%u of %d words that device %d wrote did not reach device %d", wrong, PATTERN_WORDS, faces[r].ordinal,
			         faces[me].ordinal);
		*yes = *yes && !wrong;
		TRY(count_wrong(link, faces[r].pattern + me * PATTERN_WORDS, me, r, bad, &wrong, err));
		if (wrong && *yes)
			snprintf(why, TRANSPORT_WHY_BYTES, "device %d read %u of %d words wrong from device %d", faces[me].ordinal, wrong, PATTERN_WORDS,
			         faces[r].ordinal);
		*yes = *yes && !wrong;
	}
	return STATUS_OK;
}

static enum status prove_all(const struct link *link, uint32_t *memory, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	struct face mine = {.pattern = memory, .ordinal = gpu_context(link->stream)->ordinal}, faces[GROUP_MAX_RANKS];
	TRY(exchange_faces(link, &mine, faces, err));
	*yes = enable_peers(link, faces, why);
	TRY(transport_agree(link, yes, why, err));
	if (!*yes) return STATUS_OK;
	TRY(prove(link, faces, memory + link->world_size * PATTERN_WORDS, yes, why, err));
	return transport_agree(link, yes, why, err); /* and nobody reads the patterns any more */
}

bool connect_suits(const struct device_ops *ops, int world_size, const struct comm_options *options)
{
	(void)options;
	return ops == device_find(GPU_NAME_TEXT) && 2 <= world_size && world_size <= P2P_MAX_RANKS;
}

enum status connect_peers(const struct link *link, bool *yes, char why[TRANSPORT_WHY_BYTES], struct error *err)
{
	const struct device_ops *vt = link->device->vt;
	*yes = connect_suits(vt, link->world_size, link->options);
	if (!*yes) snprintf(why, TRANSPORT_WHY_BYTES, "%d ranks on %s; 2 to %d on %s can", link->world_size, vt->name, P2P_MAX_RANKS, GPU_NAME_TEXT);
	TRY(transport_agree(link, yes, why, err));
	if (!*yes) return STATUS_OK;
	void *memory = NULL;
	TRY(vt->alloc(link->device, ((size_t)link->world_size * PATTERN_WORDS + 4) * sizeof(uint32_t), MEM_SCRATCH, "peer proof", &memory, err));
	enum status st = prove_all(link, memory, yes, why, err);
	if (st == STATUS_OK) vt->free(link->device, memory);
	return st; /* after a failure a peer may still write there: it goes with the device */
}
