/* fiber.c: stacks and the switch between them. A switch saves what the calling convention says a callee keeps (the rounding mode is not:
 * kernels do not change it) and exchanges the stack pointer: a few nanoseconds, where ucontext asks the kernel for the signal mask.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/gpu/emu/internal.h"

/* Saves this stack's registers on it and its pointer in *from; goes on where `to` was saved. */
void emu_stack_switch(void **from, void *to);

#if defined(__x86_64__)
#define SAVED_WORDS 6
__asm__(".text\n"
        ".globl emu_stack_switch\n"
        ".hidden emu_stack_switch\n"
        ".type emu_stack_switch,@function\n"
        "emu_stack_switch:\n"
        "	push %rbp\n	push %rbx\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n"
        "	mov %rsp, (%rdi)\n"
        "	mov %rsi, %rsp\n"
        "	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbx\n	pop %rbp\n"
        "	ret\n"
        ".size emu_stack_switch,.-emu_stack_switch\n");

/* As if the stack had just called `entry` from nowhere. */
static void *prepared(unsigned char *top, void (*entry)(void))
{
	void **sp = (void **)top - 2 - SAVED_WORDS; /* registers, the address to return to, the caller's that there is none of */
	memset(sp, 0, (SAVED_WORDS + 2) * sizeof *sp);
	sp[SAVED_WORDS] = (void *)(uintptr_t)entry;
	return sp;
}
#elif defined(__aarch64__)
#define SAVED_WORDS 20
__asm__(".text\n"
        ".globl emu_stack_switch\n"
        ".hidden emu_stack_switch\n"
        ".type emu_stack_switch,%function\n"
        "emu_stack_switch:\n"
        "	sub sp, sp, #160\n"
        "	stp x19, x20, [sp]\n	stp x21, x22, [sp, #16]\n	stp x23, x24, [sp, #32]\n	stp x25, x26, [sp, #48]\n"
        "	stp x27, x28, [sp, #64]\n	stp x29, x30, [sp, #80]\n"
        "	stp d8, d9, [sp, #96]\n	stp d10, d11, [sp, #112]\n	stp d12, d13, [sp, #128]\n	stp d14, d15, [sp, #144]\n"
        "	mov x9, sp\n	str x9, [x0]\n	mov sp, x1\n"
        "	ldp x19, x20, [sp]\n	ldp x21, x22, [sp, #16]\n	ldp x23, x24, [sp, #32]\n	ldp x25, x26, [sp, #48]\n"
        "	ldp x27, x28, [sp, #64]\n	ldp x29, x30, [sp, #80]\n"
        "	ldp d8, d9, [sp, #96]\n	ldp d10, d11, [sp, #112]\n	ldp d12, d13, [sp, #128]\n	ldp d14, d15, [sp, #144]\n"
        "	add sp, sp, #160\n"
        "	ret\n"
        ".size emu_stack_switch,.-emu_stack_switch\n");

static void *prepared(unsigned char *top, void (*entry)(void))
{
	void **sp = (void **)top - SAVED_WORDS;
	memset(sp, 0, SAVED_WORDS * sizeof *sp);
	sp[11] = (void *)(uintptr_t)entry; /* x30 */
	return sp;
}
#else
#error "the emulated device needs a switch of stacks for this processor"
#endif

#if defined(__SANITIZE_ADDRESS__)
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define SANITIZER_LEAVES(fake, to, bytes) __sanitizer_start_switch_fiber(fake, to, bytes)
#define SANITIZER_ENTERS(fake) __sanitizer_finish_switch_fiber(fake, NULL, NULL)
#define SANITIZER_FORGETS(p, bytes) __asan_unpoison_memory_region(p, bytes)
#else
#define SANITIZER_LEAVES(fake, to, bytes) ((void)(fake), (void)(to), (void)(bytes))
#define SANITIZER_ENTERS(fake) ((void)(fake))
#define SANITIZER_FORGETS(p, bytes) ((void)(p), (void)(bytes))
#endif

#define GUARD ((size_t)4096)

struct emu_fiber *emu_fiber_create(int number)
{
	struct emu_fiber *fiber = calloc(1, sizeof *fiber);
	if (!fiber) return NULL;
	void *p = mmap(NULL, GUARD + EMU_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
	if (p == MAP_FAILED || mprotect(p, GUARD, PROT_NONE)) {
		if (p != MAP_FAILED) munmap(p, GUARD + EMU_STACK_BYTES);
		free(fiber);
		return NULL;
	}
	fiber->stack = (unsigned char *)p + GUARD;
	fiber->stack_bytes = EMU_STACK_BYTES;
	fiber->top = fiber->stack + EMU_STACK_BYTES - (size_t)number % 29 * 128;
	return fiber;
}

void emu_fiber_destroy(struct emu_fiber *fiber)
{
	munmap(fiber->stack - GUARD, GUARD + EMU_STACK_BYTES);
	free(fiber);
}

void emu_fiber_reset(struct emu_fiber *fiber, void (*entry)(void), size_t top_bytes)
{
	SANITIZER_FORGETS(fiber->stack, EMU_STACK_BYTES); /* frames of a fiber that was given up in the middle */
	fiber->fake = NULL;
	fiber->sp = prepared(fiber->top - (top_bytes + 15) / 16 * 16, entry);
}

void emu_fiber_main(struct emu_fiber *out)
{
	*out = (struct emu_fiber){0};
#if defined(__SANITIZE_ADDRESS__)
	pthread_attr_t attr;
	void *stack = NULL;
	size_t bytes = 0;
	if (pthread_getattr_np(pthread_self(), &attr)) return;
	pthread_attr_getstack(&attr, &stack, &bytes);
	pthread_attr_destroy(&attr);
	out->stack = stack;
	out->stack_bytes = bytes;
#endif
}

void emu_fiber_switch(struct emu_fiber *from, struct emu_fiber *to, bool final)
{
	SANITIZER_LEAVES(final ? NULL : &from->fake, to->stack, to->stack_bytes);
	emu_stack_switch(&from->sp, to->sp);
	SANITIZER_ENTERS(from->fake);
}

void emu_fiber_entered(struct emu_fiber *self)
{
	SANITIZER_ENTERS(self->fake);
}
