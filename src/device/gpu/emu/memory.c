/* memory.c: what addresses are. All memory of the emulated devices, and pinned host memory, comes from one range of addresses that is
 * reserved once and cannot be touched. An allocation is whole pages of it, made accessible, with a page left out behind; a byte of the map
 * per page says which allocation it belongs to, so that one look tells what an address is. Addresses are not used again until the range is
 * through: a stale pointer stays a bad pointer.
 */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "device/gpu/emu/internal.h"

#define PAGE ((size_t)4096)
#define RANGE ((size_t)8 << 30) /* addresses of one device */
#define PAGES_EACH (RANGE / PAGE)
#define SPACES (EMU_DEVICES + 1)
#define MAX_ALLOCATIONS ((uint32_t)1 << 20)

/* The emulated hardware, of which a process has one. */
static struct {
	pthread_mutex_t lock;
	unsigned char *base;                /* SPACES * RANGE */
	uint32_t *map;                      /* per page: index into `allocations`, 0: nothing */
	struct emu_allocation *allocations; /* [0] is not used */
	uint32_t used;                      /* of `allocations` so far, [0] included */
	uint32_t spare;                     /* chain of freed entries through `begin`; 0: none */
	size_t cursor[SPACES];              /* page where the next search begins */
	size_t bytes[SPACES];
	bool peer[EMU_DEVICES][EMU_DEVICES];
} memory = {.lock = PTHREAD_MUTEX_INITIALIZER, .used = 1};

static void *reserve(size_t bytes, int protection)
{
	void *p = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	return p == MAP_FAILED ? NULL : p;
}

static bool started(void)
{
	if (memory.base) return true;
	memory.map = reserve(SPACES * PAGES_EACH * sizeof *memory.map, PROT_READ | PROT_WRITE);
	memory.allocations = reserve(MAX_ALLOCATIONS * sizeof *memory.allocations, PROT_READ | PROT_WRITE);
	unsigned char *base = reserve(SPACES * RANGE, PROT_NONE);
	if (!memory.map || !memory.allocations || !base) return false;
	memory.base = base;
	return true;
}

/* First of `pages` + 1 free pages of the space (one stays out of reach, and so does page 0), from the cursor on and round; PAGES_EACH: none. */
static size_t find_room(int space, size_t pages)
{
	const uint32_t *map = memory.map + (size_t)space * PAGES_EACH;
	size_t run = 0, at = memory.cursor[space] ? memory.cursor[space] : 1;
	for (size_t seen = 0; seen < 2 * PAGES_EACH; seen++, at++) {
		if (at >= PAGES_EACH) at = 1, run = 0;
		run = map[at] ? 0 : run + 1;
		if (run == pages + 1) return at - pages;
	}
	return PAGES_EACH;
}

static gpu_error alloc_locked(int space, size_t bytes, void **out)
{
	const size_t pages = bytes / PAGE + (bytes % PAGE != 0);
	if (!started() || bytes > EMU_DEVICE_BYTES || memory.bytes[space] + pages * PAGE > EMU_DEVICE_BYTES) return GPU_NO_MEMORY;
	if (!memory.spare && memory.used == MAX_ALLOCATIONS) return GPU_NO_MEMORY;
	const size_t page = find_room(space, pages);
	if (page == PAGES_EACH) return GPU_NO_MEMORY;
	unsigned char *p = memory.base + (size_t)space * RANGE + page * PAGE;
	if (mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE)) return GPU_NO_MEMORY;
	uint32_t entry = memory.spare;
	if (entry) memory.spare = (uint32_t)memory.allocations[entry].begin;
	else entry = memory.used++;
	memory.allocations[entry] = (struct emu_allocation){.begin = (uintptr_t)p, .end = (uintptr_t)p + bytes, .device = space};
	for (size_t i = 0; i < pages; i++) memory.map[(size_t)space * PAGES_EACH + page + i] = entry;
	memory.cursor[space] = page + pages + 1;
	memory.bytes[space] += pages * PAGE;
	*out = p;
	return GPU_OK;
}

gpu_error emu_memory_alloc(int device, size_t bytes, void **out)
{
	*out = NULL;
	if (!bytes) return GPU_OK;
	pthread_mutex_lock(&memory.lock);
	const gpu_error code = alloc_locked(device, bytes, out);
	pthread_mutex_unlock(&memory.lock);
	if (code == GPU_OK) memset(*out, 0xff, bytes);
	return code;
}

const struct emu_allocation *emu_memory_find(const void *p)
{
	if (!emu_memory_reserved(p)) return NULL;
	const uint32_t entry = memory.map[((uintptr_t)p - (uintptr_t)memory.base) / PAGE];
	return entry ? &memory.allocations[entry] : NULL;
}

bool emu_memory_reserved(const void *p)
{
	return memory.base && (uintptr_t)p - (uintptr_t)memory.base < SPACES * RANGE;
}

static bool free_locked(int device, void *p)
{
	const struct emu_allocation *a = emu_memory_find(p);
	if (!a || a->begin != (uintptr_t)p || (a->device == EMU_HOST) != (device == EMU_HOST)) return false;
	const int space = a->device;
	const size_t first = ((uintptr_t)p - (uintptr_t)memory.base) / PAGE, pages = (a->end - a->begin + PAGE - 1) / PAGE;
	const uint32_t entry = memory.map[first];
	memory.allocations[entry] = (struct emu_allocation){.begin = memory.spare};
	memory.spare = entry;
	for (size_t i = 0; i < pages; i++) memory.map[first + i] = 0;
	memory.bytes[space] -= pages * PAGE;
	madvise(p, pages * PAGE, MADV_DONTNEED);
	mprotect(p, pages * PAGE, PROT_NONE);
	return true;
}

gpu_error emu_memory_free(int device, void *p)
{
	if (!p) return GPU_OK;
	pthread_mutex_lock(&memory.lock);
	const bool freed = free_locked(device, p);
	pthread_mutex_unlock(&memory.lock);
	return freed ? GPU_OK : EMU_BAD_VALUE;
}

void emu_memory_info(int device, size_t *free_bytes, size_t *total)
{
	pthread_mutex_lock(&memory.lock);
	*free_bytes = EMU_DEVICE_BYTES - memory.bytes[device];
	pthread_mutex_unlock(&memory.lock);
	*total = EMU_DEVICE_BYTES;
}

bool emu_memory_peer(int device, int other)
{
	return device == other || other == EMU_HOST || __atomic_load_n(&memory.peer[device][other], __ATOMIC_RELAXED);
}

bool emu_memory_peer_enable(int device, int other)
{
	return !__atomic_exchange_n(&memory.peer[device][other], true, __ATOMIC_RELAXED);
}

void emu_memory_peers_reset(void)
{
	for (int d = 0; d < EMU_DEVICES; d++)
		for (int o = 0; o < EMU_DEVICES; o++) __atomic_store_n(&memory.peer[d][o], false, __ATOMIC_RELAXED);
}
