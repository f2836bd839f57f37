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
LIBS = $(MPI_LIBS) -ljansson -lyaml -lm -lpthread

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

.PHONY: all
all: $(BUILD)/shardproof

$(BUILD)/shardproof: $(BUILD)/obj/harness/main.o $(LIBRARIES)
	$(CC) $(LDFLAGS) -o $@ $< $(LINK) $(LIBS)

define part_rule
$(BUILD)/lib$(1).a: $(call objects,$(1)) $(if $(filter sharded,$(1)),$(KERNEL_OBJECTS))
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach part,$(PARTS),$(eval $(call part_rule,$(part))))

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(dir $@)
	$(CC) $(CFLAGS) -c -o $@ $<

# MPI headers only where the engine is
$(BUILD)/obj/sharded/comm_mpi.o: CFLAGS += $(MPI_CFLAGS) -Wno-conversion

define isa_rule
$(BUILD)/obj/sharded/ops_kernels_$(1).o: sharded/ops_kernels.c
	@mkdir -p $$(dir $$@)
	$$(CC) $$(filter-out -O2,$$(CFLAGS)) $$(if $$(filter -O0,$$(OPT)),,-O3) $$(ISA_$(1)) -DISA=$(1) -c -o $$@ $$<
endef
$(foreach isa,$(ISAS),$(eval $(call isa_rule,$(isa))))

# Unit tests: cases/unit/NAME/*.c -> build/test/NAME, a Criterion binary linked with every library
UNITS = $(notdir $(wildcard cases/unit/*))
define unit_rule
$(BUILD)/test/$(1): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard cases/unit/$(1)/*.c)) $(LIBRARIES)
	@mkdir -p $$(dir $$@)
	$(CC) $(LDFLAGS) -no-pie -o $$@ $$(filter %.o,$$^) $(LINK) -lcriterion -lmpfr -lgmp $(LIBS)
endef
$(foreach unit,$(UNITS),$(eval $(call unit_rule,$(unit))))

.PHONY: clean
clean:
	rm -rf $(BUILD)

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)
