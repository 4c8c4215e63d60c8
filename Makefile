# tandem: build, test, measure. `make help` lists the targets.
#
# Out of tree: everything goes to $(BUILD). Each folder of src/ is picked up by wildcard; a file src/device/cpu/isa_X.c is
# compiled with the flags of that instruction set and chosen at run time, so it is left out where it cannot exist.

BUILD := build
CC ?= cc
OBJCOPY ?= objcopy
SAN ?=
PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
MANDIR ?= $(PREFIX)/share/man
UNITDIR ?= $(LIBDIR)/systemd/system
COMPLETIONDIR ?= $(PREFIX)/share/bash-completion/completions
ARCH := $(shell uname -m)

OPT ?= -O3
WARN := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wvla -Wmissing-prototypes
ifneq ($(WERROR),)
WARN += -Werror
endif
PKGS := jansson libpcre2-8 libutf8proc hwloc libmd libmicrohttpd
# -ffp-contract=off: a*b+c is fused only where the source says fma, or the bits would depend on the compiler (C6).
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE $(OPT) -g -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -fvisibility=hidden -pthread \
	$(WARN) -Isrc -Iinclude -MMD -MP $(shell pkg-config --cflags $(PKGS) 2>/dev/null) $(CFLAGS)
LIBS = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -ldl -pthread

ifeq ($(SAN),asan)
BUILD := build/asan
OPT := -O1
CFLAGS_ALL += -fsanitize=address,undefined -fno-sanitize-recover=all
LDFLAGS += -fsanitize=address,undefined
endif
ifeq ($(SAN),tsan)
BUILD := build/tsan
OPT := -O1
CFLAGS_ALL += -fsanitize=thread
LDFLAGS += -fsanitize=thread
endif

# BACKENDS: cpu and at most one of cuda, hip, emu (the GPU back end's sources on an emulated device; WARP lanes, 32 or 64).
BACKENDS ?= cpu
VENDOR := $(filter cuda hip emu,$(BACKENDS))
WARP ?= 32
FOLDERS := base text model device device/cpu comm engine prescreen serve client $(if $(VENDOR),device/gpu comm/gpu $(if $(filter emu,$(VENDOR)),device/gpu/emu))
SRC := $(foreach d,$(FOLDERS),$(wildcard src/$(d)/*.c))
CFLAGS_ALL += -DDEVICE_BACKENDS="$(foreach b,$(BACKENDS),X($(b)))"
ifneq ($(VENDOR),)
BUILD := $(BUILD)/$(VENDOR)$(if $(filter emu,$(VENDOR)),$(WARP))
GPU_DEFINES := -DGPU_$(shell echo $(VENDOR) | tr a-z A-Z) -DGPU_NAME=$(VENDOR)
CUDA_HOME ?= /usr/local/cuda
CUDA_ARCH ?= 90a
HIP_ARCHS ?= gfx90a gfx906
GPU_SRC := $(wildcard src/device/gpu/*.cu src/comm/gpu/*.cu)
# What is inline PTX or needs tensor cores is CUDA's alone.
ifneq ($(VENDOR),cuda)
GPU_SRC := $(filter-out %_cuda.cu,$(GPU_SRC))
endif
ifeq ($(VENDOR),cuda)
GPU_DEFINES += -I$(CUDA_HOME)/include
GPU_CC = $(CUDA_HOME)/bin/nvcc -std=c++17 -O3 -lineinfo --compress-mode=size -gencode=arch=compute_$(CUDA_ARCH),code=sm_$(CUDA_ARCH) -Xptxas -warn-spills \
	-Xcompiler -fvisibility=hidden,-Wall,-Wextra,-fno-exceptions,-fno-threadsafe-statics -Werror all-warnings
GPU_LIBS := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt
endif
ifeq ($(VENDOR),hip)
# Waves are 64 lanes wide on gfx9 (CDNA, GCN), 32 on gfx10 and later (RDNA); one build is for one width.
GPU_DEFINES += -D__HIP_PLATFORM_AMD__ -DGPU_WARP=$(if $(filter gfx9%,$(HIP_ARCHS)),64,32)
# Functions of the host are unused where the device is compiled.
# A loop that is not unrolled although the source asks for it is no error.
GPU_CC = hipcc -std=c++17 -O3 $(HIP_ARCHS:%=--offload-arch=%) -ffp-contract=off -fvisibility=hidden -Wall -Wextra -Wno-unused-function -Wno-pass-failed -Werror
GPU_LIBS := -lamdhip64
endif
ifeq ($(VENDOR),emu)
ifeq ($(SAN),tsan)
$(error SAN=tsan and the emulated device do not go together: it answers the calls that -fsanitize=thread makes; use SAN=asan)
endif
GPU_DEFINES += -DGPU_WARP=$(WARP)
# -fsanitize=thread puts a call before each access of a kernel; src/device/gpu/emu/access.c answers it, and no sanitizer is linked for it.
GPU_CC = $(CXX) -x c++ -std=c++17 -O1 -g -ffp-contract=off -fno-exceptions -fno-rtti -fno-strict-aliasing -fvisibility=hidden -Wall -Wextra -pthread \
	-fsanitize=thread $(EMU_CLANG) $(if $(SAN),-fsanitize=undefined -fno-sanitize-recover=all) $(if $(WERROR),-Werror)
# clang leaves out the call before a read that a write to the same place follows; GCC does not.
EMU_CLANG := $(if $(findstring clang,$(shell $(CXX) --version)),-mllvm -tsan-instrument-read-before-write)
endif
CFLAGS_ALL += $(GPU_DEFINES)
LIBS += $(GPU_LIBS)
endif
ISA_AVX2 := -mavx2 -mfma -mf16c
ISA_AVX512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512
ifneq ($(ARCH),x86_64)
SRC := $(filter-out src/device/cpu/isa_avx%,$(SRC))
endif
OBJ := $(SRC:src/%.c=$(BUILD)/obj/%.o) $(GPU_SRC:src/%.cu=$(BUILD)/obj/%.cu.o) $(BUILD)/obj/serve/page_html.o
APP_OBJ := $(patsubst src/%.c,$(BUILD)/obj/%.o,$(wildcard src/apps/*.c))
LIB := $(BUILD)/libtandem.a

UNIT_HELP := $(filter-out tests/unit/test_%,$(wildcard tests/unit/*.c)) # linked into every unit test
UNIT := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(wildcard tests/unit/test_*.c))
FUZZ := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
E2E := $(patsubst tests/e2e/lib/%.c,$(BUILD)/tests/e2e/%,$(wildcard tests/e2e/lib/*.c))
CHECK := $(BUILD)/tests/check/check
# *_emu.c: for the emulated device alone.
CHECK_GPU_SRC := $(filter-out $(if $(filter emu,$(VENDOR)),,%_emu.c),$(wildcard tests/gpu/*.c tests/common/*.c))
CHECK_GPU := $(if $(VENDOR),$(BUILD)/tests/gpu/check_gpu) $(if $(filter emu,$(VENDOR)),$(BUILD)/tests/gpu/emu/test_emu)
SIM := $(BUILD)/tests/sim/sim
SOAK := $(BUILD)/tests/soak/soak
TESTS := $(UNIT) $(FUZZ) $(E2E) $(CHECK) $(CHECK_GPU) $(SIM) $(SOAK)

.PHONY: all demo test quick check emu e2e bench asan tsan fuzz gpu-check gpu-bundle soak model-check install uninstall clean help deps programs gpu-programs
.SECONDARY:

all: $(BUILD)/tandem ## build/tandem (the default)

$(LIB): $(OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/tandem: $(APP_OBJ) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $(APP_OBJ) $(LIB) $(LIBS)

$(BUILD)/obj/device/cpu/isa_avx2.o: ISA := $(ISA_AVX2)
$(BUILD)/obj/device/cpu/isa_avx512.o: ISA := $(ISA_AVX512)
$(BUILD)/obj/%.o: src/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA) -c -o $@ $<

$(BUILD)/obj/%.cu.o: src/%.cu Makefile
	@mkdir -p $(@D)
	$(GPU_CC) $(GPU_DEFINES) -Isrc -MMD -MP -c -o $@ $<

# The page at /, as bytes.
$(BUILD)/obj/serve/page_html.c: src/serve/page.html
	@mkdir -p $(@D)
	{ echo '#include "serve/page.h"'; echo 'const unsigned char page_html[] = {'; od -An -v -tu1 $< | sed -E 's/ +([0-9]+)/\1,/g'; \
	  echo '};'; echo 'const size_t page_html_size = sizeof page_html;'; } >$@
$(BUILD)/obj/serve/page_html.o: $(BUILD)/obj/serve/page_html.c
	$(CC) $(CFLAGS_ALL) -c -o $@ $<

$(BUILD)/tests/obj/%.o: tests/%.c Makefile
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests -c -o $@ $<

$(BUILD)/tests/unit/%: $(BUILD)/tests/obj/unit/%.o $(UNIT_HELP:tests/%.c=$(BUILD)/tests/obj/%.o) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(WRAP:%=-Wl,--wrap=%) -o $@ $^ $(LIBS) -lcmocka
# Functions that this test makes fail or take long.
$(BUILD)/tests/unit/test_recovery: WRAP := pthread_create group_create forward_layers graphs_record
$(BUILD)/tests/unit/test_options: $(BUILD)/obj/apps/options.o $(BUILD)/obj/apps/settings.o

$(BUILD)/tests/fuzz/%: $(BUILD)/tests/obj/fuzz/%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)
$(BUILD)/tests/e2e/%: $(BUILD)/tests/obj/e2e/lib/%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(CHECK): $(patsubst tests/%.c,$(BUILD)/tests/obj/%.o,$(wildcard tests/check/*.c tests/common/*.c)) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(BUILD)/tests/gpu/check_gpu: $(CHECK_GPU_SRC:tests/%.c=$(BUILD)/tests/obj/%.o) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

# What the emulated device itself is tried on.
$(BUILD)/tests/obj/%.cu.o: tests/%.cu Makefile
	@mkdir -p $(@D)
	$(GPU_CC) $(GPU_DEFINES) -Isrc -Itests -MMD -MP -c -o $@ $<
$(BUILD)/tests/gpu/emu/test_emu: $(patsubst tests/%,$(BUILD)/tests/obj/%.o,$(basename $(wildcard tests/gpu/emu/*.c)) $(wildcard tests/gpu/emu/*.cu)) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS) -lcmocka

# The same two programs for a machine that lacks their libraries: these lie beside them.
BUNDLE := build/gpu-bundle
BUNDLE_LINK := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib'
$(BUNDLE)/tandem: $(APP_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(BUNDLE_LINK) -o $@ $(APP_OBJ) $(LIB) $(LIBS)
$(BUNDLE)/check_gpu: $(CHECK_GPU_SRC:tests/%.c=$(BUILD)/tests/obj/%.o) $(OBJ)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) $(BUNDLE_LINK) -o $@ $^ $(LIBS)

$(SOAK): $(BUILD)/tests/obj/soak/soak.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

$(SIM): $(patsubst tests/%.c,$(BUILD)/tests/obj/%.o,$(wildcard tests/sim/*.c)) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS) -o $@ $^ $(LIBS)

programs: $(BUILD)/tandem $(TESTS)
gpu-programs: $(BUILD)/tandem $(CHECK_GPU) $(E2E)

demo: ## set up, build, and let the embedded model tell a story on two ranks
	@sh tools/deps.sh build
	@$(MAKE) --no-print-directory -s -j$$(nproc) $(BUILD)/tandem
	$(BUILD)/tandem run models/demo --tp 2 -n 120 -p "Once upon a time"

JOBS := $$(nproc)
test: ## set up, build with -Werror, and run every suite (about 50 minutes on two cores)
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 programs
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 SAN=asan programs
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 SAN=tsan programs
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 BACKENDS="cpu emu" WARP=32 gpu-programs
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 BACKENDS="cpu emu" WARP=64 gpu-programs
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 BACKENDS="cpu emu" WARP=64 SAN=asan gpu-programs
	@bash tests/run.sh layers unit sim check mutation e2e fuzz model-check asan tsan emu32 emu64 emu-asan gpu-compile python

quick: ## the suites that a change is tried against while writing it (about two minutes)
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) WERROR=1 programs
	@bash tests/run.sh layers unit sim check

check: $(CHECK) ## every op of every instruction set against the C reference and a double-precision oracle
	@bash tests/run.sh check

emu: ## the GPU's kernels on the emulated device, waves of WARP lanes (32)
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) BACKENDS="cpu emu" WARP=$(WARP) gpu-programs
	@bash tests/run.sh emu$(WARP)

bench: $(BUILD)/tandem $(CHECK) ## rates of the ops and of a decode step against this machine's peaks (nothing else may run)
	$(CHECK) --bench
	$(BUILD)/tandem bench peak
	$(BUILD)/tandem bench step tests/data/plan/bench-1.4b --random-weights 1

asan tsan: ## the suites under AddressSanitizer + UBSan, or ThreadSanitizer
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) SAN=$@ programs
	@bash tests/run.sh $@

e2e: ## the program from outside: help, errors, hashes, signals, faults
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) programs
	@bash tests/run.sh e2e

soak: ## 10 000 requests on a server: clients that vanish, malformed bodies, ranks that fail (about two minutes)
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) programs
	@SOAK_REQUESTS=$${SOAK_REQUESTS:-10000} bash tests/e2e/soak.sh

gpu-check: ## on a machine with GPUs: kernels, collectives, faults, comparisons, then the figures (at most ten minutes)
	@bash tests/gpu/gpu_check.sh $(GPU_CHECK)

gpu-bundle: ## build/gpu-bundle: what gpu-check needs where neither compiler nor packages are
	@$(MAKE) --no-print-directory -s -j$(JOBS) BACKENDS="cpu cuda" $(BUNDLE)/tandem $(BUNDLE)/check_gpu
	@bash tests/gpu/bundle.sh $(BUNDLE)

fuzz: ## every parser on mutated input, FUZZ_SECONDS each (5)
	@sh tools/deps.sh test
	@$(MAKE) --no-print-directory -s -j$(JOBS) programs
	@bash tests/run.sh fuzz

model-check: ## the Promela model of rendezvous and abort, by spin
	@sh tools/deps.sh test
	@bash tests/run.sh model-check

# The library that is installed is one object in which only tandem_* can be seen: the names of our modules must not meet those of
# the program that links it. It speaks token ids, so that text and server stay out, and with them the packages that they need.
LIB_PKGS := jansson hwloc libmd
$(BUILD)/install/libtandem.a: $(filter-out $(BUILD)/obj/text/% $(BUILD)/obj/serve/% $(BUILD)/obj/client/%,$(OBJ))
	@mkdir -p $(@D)
	@rm -f $@
	$(LD) -r -o $(@D)/tandem.o $^
	$(OBJCOPY) --localize-hidden $(@D)/tandem.o
	ar rcs $@ $(@D)/tandem.o

$(BUILD)/install/pages: $(BUILD)/tandem
	@mkdir -p $(@D)
	$< --completion >$(@D)/tandem.bash
	for page in $$($< --man); do $< --man $$page >$(@D)/$$page.1 || exit 1; done
	$< --man >$@

VERSION = $(shell sed -n 's/^\#define TANDEM_VERSION "\(.*\)"/\1/p' include/tandem.h)
# Paths for the shell, and text for sed between bars, whatever characters they have.
path = '$(subst ','\'',$(DESTDIR)$(1))'
text = $(subst ','\'',$(subst |,\|,$(subst &,\&,$(subst \,\\,$(1)))))
FILL = sed -e 's|@PREFIX@|$(call text,$(PREFIX))|g; s|@LIBDIR@|$(call text,$(LIBDIR))|g; s|@VERSION@|$(VERSION)|g; s|@REQUIRES@|$(LIB_PKGS)|g'
BLANK := $(subst ,, )
COMMAND = $(call path,$(PREFIX)/bin/tandem)
MAN1 = $(call path,$(MANDIR)/man1)

install: $(BUILD)/tandem $(BUILD)/install/libtandem.a $(BUILD)/install/pages ## command, library, header, manual, completion, systemd unit to $(DESTDIR)$(PREFIX)
	install -D -m 755 $(BUILD)/tandem $(COMMAND)
	install -D -m 644 $(BUILD)/install/libtandem.a $(call path,$(LIBDIR)/libtandem.a)
	install -D -m 644 include/tandem.h $(call path,$(PREFIX)/include/tandem.h)
	install -d $(call path,$(LIBDIR)/pkgconfig) $(MAN1) $(call path,$(UNITDIR))
	$(FILL) contrib/tandem.pc.in >$(call path,$(LIBDIR)/pkgconfig/tandem.pc)
	sed -e 's|@PREFIX@|$(call text,$(subst $(BLANK),\x20,$(PREFIX)))|g' contrib/tandem.service >$(call path,$(UNITDIR)/tandem.service)
	chmod 644 $(call path,$(LIBDIR)/pkgconfig/tandem.pc) $(call path,$(UNITDIR)/tandem.service)
	for page in $$(cat $(BUILD)/install/pages); do install -m 644 $(BUILD)/install/$$page.1 $(MAN1) || exit 1; done
	install -D -m 644 $(BUILD)/install/tandem.bash $(call path,$(COMPLETIONDIR)/tandem)

# The command that is there knows which pages came with it.
uninstall: ## removes what install put there, and nothing else
	if [ -x $(COMMAND) ]; then for page in $$($(COMMAND) --man); do rm -f $(MAN1)/$$page.1; done; fi
	rm -f $(COMMAND) $(call path,$(LIBDIR)/libtandem.a) $(call path,$(PREFIX)/include/tandem.h)
	rm -f $(call path,$(LIBDIR)/pkgconfig/tandem.pc) $(call path,$(UNITDIR)/tandem.service) $(call path,$(COMPLETIONDIR)/tandem)

clean: ## remove build/
	rm -rf build

help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z -]*:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

-include $(OBJ:.o=.d) $(APP_OBJ:.o=.d) $(wildcard $(BUILD)/tests/obj/*/*.d $(BUILD)/tests/obj/*/*/*.d)
