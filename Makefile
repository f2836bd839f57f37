# Shardproof. `make help` lists the targets.
# Each part of the design is one static library; a part links only what its arrows allow (make lint checks the includes).

BUILD ?= build
CC = gcc
MPI_CFLAGS := $(shell pkg-config --cflags ompi-c 2>/dev/null)
MPI_LIBS := $(shell pkg-config --libs ompi-c 2>/dev/null)
WARN = -Wall -Wextra -Wshadow -Wconversion -Werror -Wno-missing-field-initializers
OPT ?= -O2
SANITIZE ?=
CFLAGS = -std=c11 -D_GNU_SOURCE $(WARN) $(OPT) -g -ffp-contract=off -fno-math-errno $(SANITIZE) -I. -MMD -MP
LDFLAGS = $(SANITIZE) -rdynamic
LIBS = $(MPI_LIBS) -ljansson -lyaml -lm -lpthread -ldl

PARTS = core layout reference sharded reports harness
sources = $(wildcard $(1)/*.c)
# ops_kernels.c is compiled once per instruction set, below
KERNELS = sharded/ops_kernels.c
objects = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out $(KERNELS) harness/main.c,$(call sources,$(1))))
ISAS = plain avx2 avx512
ISA_plain =
ISA_avx2 = -mavx2 -mfma
ISA_avx512 = -mavx512f -mavx512dq -mavx512bw -mavx512vl -mfma -mprefer-vector-width=512
KERNEL_OBJECTS = $(ISAS:%=$(BUILD)/obj/sharded/ops_kernels_%.o)

LIBRARIES = $(PARTS:%=$(BUILD)/lib%.a)
# the order in which the linker needs them: users first
LINK = $(BUILD)/libharness.a $(BUILD)/libreports.a $(BUILD)/libsharded.a $(BUILD)/libreference.a $(BUILD)/liblayout.a $(BUILD)/libcore.a

.SECONDARY:
.PHONY: all
all: $(BUILD)/shardproof

$(BUILD)/shardproof: $(BUILD)/obj/harness/main.o $(LIBRARIES)
	@$(CC) $(LDFLAGS) -o $@ $< $(LINK) $(LIBS)

define part_rule
$(BUILD)/lib$(1).a: $(call objects,$(1)) $(if $(filter sharded,$(1)),$(KERNEL_OBJECTS))
	@rm -f $$@
	@ar rcs $$@ $$^
endef
$(foreach part,$(PARTS),$(eval $(call part_rule,$(part))))

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(dir $@)
	@echo "  CC $<"
	@$(CC) $(CFLAGS) -c -o $@ $<

# MPI headers only where the engine is
$(BUILD)/obj/sharded/comm_mpi.o: CFLAGS += $(MPI_CFLAGS) -Wno-conversion

define isa_rule
$(BUILD)/obj/sharded/ops_kernels_$(1).o: sharded/ops_kernels.c
	@mkdir -p $$(dir $$@)
	@echo "  CC $$< ($(1))"
	@$$(CC) $$(filter-out -O2,$$(CFLAGS)) $$(if $$(filter -O0,$$(OPT)),,-O3) $$(ISA_$(1)) -DISA=$(1) -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))

# Unit tests: cases/unit/NAME/*.c -> build/test/NAME, a Criterion binary linked with every library
UNITS = $(notdir $(wildcard cases/unit/*))
define unit_rule
$(BUILD)/test/$(1): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cases/unit/$(1)/*.c)) $(LIBRARIES)
	@mkdir -p $$(dir $$@)
	@$(CC) $(LDFLAGS) -no-pie -o $$@ $$(filter %.o,$$^) $(LINK) -lcriterion -lmpfr -lgmp $(LIBS)
endef
$(foreach unit,$(UNITS),$(eval $(call unit_rule,$(unit))))

# Small programs that tests launch (mpi ranks): cases/programs/NAME.c -> build/test/NAME; benchmarks likewise
PROGRAMS = $(patsubst cases/programs/%.c,%,$(wildcard cases/programs/*.c))
BENCHES = $(patsubst cases/bench/%.c,%,$(wildcard cases/bench/*.c))
$(BUILD)/test/%: $(BUILD)/obj/cases/programs/%.o $(LIBRARIES)
	@mkdir -p $(dir $@)
	@$(CC) $(LDFLAGS) -o $@ $< $(LINK) $(LIBS)
$(BUILD)/bench/%: $(BUILD)/obj/cases/bench/%.o $(LIBRARIES)
	@mkdir -p $(dir $@)
	@$(CC) $(LDFLAGS) -o $@ $< $(LINK) $(LIBS)

.PHONY: tests
tests: $(BUILD)/shardproof $(UNITS:%=$(BUILD)/test/%) $(PROGRAMS:%=$(BUILD)/test/%)

# ---- what a person calls. The first two install what they need (Debian, root or sudo), so each works alone on a fresh machine;
# the rest runs in a second make, which then finds the libraries.

.PHONY: help
help:
	@echo "make run     build, run the default suite on local ranks and again over MPI, check that both give the same bits"
	@echo "make test    unit tests, rank programs, command line, planted faults; ends with 'N passed, N failed'"
	@echo "make         build/shardproof (needs the packages that tools/install.sh names)"
	@echo "make lint    include arrows, headers that stand alone, clang-format"
	@echo "make asan    make test under AddressSanitizer and UndefinedBehaviorSanitizer"
	@echo "make tsan    the suite on ranks as threads under ThreadSanitizer"
	@echo "make coverage  line coverage over make test, HTML in build/coverage/html (needs lcov)"
	@echo "make valgrind  20 cases under memcheck (needs valgrind)"
	@echo "make bench   measured speeds, as ratios where they compare two programs"
	@echo "make clean   remove build/"

.PHONY: run test
run:
	@tools/install.sh
	@$(MAKE) --no-print-directory all
	@$(MAKE) --no-print-directory main-job
test:
	@tools/install.sh
	@$(MAKE) --no-print-directory tests
	@tools/test.sh $(BUILD)

.PHONY: main-job
main-job:
	$(BUILD)/shardproof run --json $(BUILD)/local.json --junit $(BUILD)/local.xml
	$(BUILD)/shardproof run --engine mpi --json $(BUILD)/mpi.json --junit $(BUILD)/mpi.xml
	$(BUILD)/shardproof agree $(BUILD)/local.json $(BUILD)/mpi.json

.PHONY: lint
lint:
	@tools/lint.sh

ASAN = SANITIZE="-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer" OPT=-O1 BUILD=build/asan
.PHONY: asan
asan:
	@tools/install.sh
	@$(MAKE) --no-print-directory $(ASAN) tests
	@tools/test.sh build/asan

TSAN = SANITIZE=-fsanitize=thread OPT=-O1 BUILD=build/tsan
.PHONY: tsan
tsan:
	@tools/install.sh
	@$(MAKE) --no-print-directory $(TSAN) all
	TSAN_OPTIONS=halt_on_error=1 build/tsan/shardproof run --threads --filter '*2.fsdp2*'

.PHONY: coverage
coverage:
	@tools/install.sh
	@$(MAKE) --no-print-directory SANITIZE="--coverage -fprofile-update=atomic" OPT=-O1 BUILD=build/coverage tests
	@tools/coverage.sh build/coverage

.PHONY: valgrind
valgrind:
	@tools/install.sh
	@$(MAKE) --no-print-directory all
	@tools/valgrind.sh $(BUILD)

.PHONY: bench
bench:
	@tools/install.sh
	@$(MAKE) --no-print-directory all $(BENCHES:%=$(BUILD)/bench/%)
	@tools/bench.sh $(BUILD)

.PHONY: clean
clean:
	rm -rf build

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
