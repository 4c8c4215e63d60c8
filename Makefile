# tandem: build, test, measure. `make help` lists the targets.
#
# Out of tree: everything goes to $(BUILD). Each folder of src/ is picked up by wildcard; a file src/device/cpu/isa_X.c is
# compiled with the flags of that instruction set and chosen at run time, so it is left out where it cannot exist.

BUILD ?= build
CC ?= cc
SAN ?=
ARCH := $(shell uname -m)

OPT ?= -O3
WARN := -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes -Wvla -Wmissing-prototypes
ifneq ($(WERROR),)
WARN += -Werror
endif
PKGS := jansson libpcre2-8 libutf8proc hwloc libmd
# -ffp-contract=off: a*b+c is fused only where the source says fma, or the bits would depend on the compiler (C6).
CFLAGS_ALL = -std=c17 -D_GNU_SOURCE $(OPT) -g -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -fvisibility=hidden -pthread \
	$(WARN) -Isrc -Iinclude -MMD -MP $(shell pkg-config --cflags $(PKGS) 2>/dev/null) $(CFLAGS)
LIBS = $(shell pkg-config --libs $(PKGS) 2>/dev/null) -lm -pthread

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

FOLDERS := base text model device device/cpu comm engine
SRC := $(foreach d,$(FOLDERS),$(wildcard src/$(d)/*.c))
ISA_AVX2 := -mavx2 -mfma -mf16c
ISA_AVX512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx2 -mfma -mf16c -mprefer-vector-width=512
ifneq ($(ARCH),x86_64)
SRC := $(filter-out src/device/cpu/isa_avx%,$(SRC))
endif
OBJ := $(SRC:src/%.c=$(BUILD)/obj/%.o)
APP_OBJ := $(patsubst src/%.c,$(BUILD)/obj/%.o,$(wildcard src/apps/*.c))
LIB := $(BUILD)/libtandem.a

UNIT_HELP := $(filter-out tests/unit/test_%,$(wildcard tests/unit/*.c)) # linked into every unit test
UNIT := $(patsubst tests/unit/%.c,$(BUILD)/tests/unit/%,$(wildcard tests/unit/test_*.c))
FUZZ := $(patsubst tests/fuzz/%.c,$(BUILD)/tests/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
CHECK := $(BUILD)/tests/check/check

.PHONY: all demo test check e2e bench asan tsan fuzz model-check install clean help deps unit programs

all: $(BUILD)/tandem

$(LIB): $(OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/tandem: $(APP_OBJ) $(LIB)
	$(CC) $(LDFLAGS) -o $@ $(APP_OBJ) $(LIB) $(LIBS)

$(BUILD)/obj/device/cpu/isa_avx2.o: ISA := $(ISA_AVX2)
$(BUILD)/obj/device/cpu/isa_avx512.o: ISA := $(ISA_AVX512)
$(BUILD)/obj/%.o: src/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(ISA) -c -o $@ $<

$(BUILD)/tests/unit/%: tests/unit/%.c $(UNIT_HELP) $(wildcard tests/unit/*.h) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests $(LDFLAGS) -o $@ $(filter %.c %.o,$^) $(LIB) $(LIBS) -lcmocka
$(BUILD)/tests/unit/test_options: $(BUILD)/obj/apps/options.o $(BUILD)/obj/apps/settings.o

$(BUILD)/tests/fuzz/%: tests/fuzz/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests $(LDFLAGS) -o $@ $< $(LIB) $(LIBS)

$(CHECK): $(wildcard tests/check/*.c) $(wildcard tests/check/*.h) $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Itests $(LDFLAGS) -o $@ $(wildcard tests/check/*.c) $(LIB) $(LIBS)

$(BUILD)/tests/e2e/json_get: tests/e2e/lib/json_get.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(LDFLAGS) -o $@ $< $(LIBS)

unit: $(UNIT)
programs: $(BUILD)/tandem $(UNIT) $(FUZZ) $(CHECK) $(BUILD)/tests/e2e/json_get

e2e: $(BUILD)/tandem $(BUILD)/tests/e2e/json_get
	bash tests/run.sh e2e

clean:
	rm -rf build

-include $(OBJ:.o=.d) $(APP_OBJ:.o=.d)
