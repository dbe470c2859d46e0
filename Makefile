# cltrain: builds, tests, demonstrates. `make help` lists the targets.
#
#   make demo     installs missing packages, builds, trains a small model on real text (README.md)
#   make check    installs missing packages, builds, runs every test
#
# Sources are found by folder: a new .c file in a layer's folder, a test/<folder>/test_*.c or a .cl file needs
# no change here. Variables: BUILD=folder, CC=clang, HOSTCC=gcc (where CC compiles for another architecture: for the
# program that runs during the build), MPICC=another MPI's mpicc,
# SANITIZE=address|undefined|thread, WERROR=0, DEBUG=1, CURL=0 (without object stores: no libcurl, no expat), IMAGES=0
# (without pictures: no libjpeg, no libpng; the default where pkg-config does not find them), URING=0 (threads instead of
# io_uring for offload to files: no liburing; the default likewise), HWLOC=0 (cltrain launch does not know NUMA nodes and
# binds no ranks: no hwloc; the default likewise).

BUILD ?= build
CC ?= gcc
HOSTCC ?= $(CC)
MPICC ?= mpicc
DEBUG ?= 0
WERROR ?= 1
SANITIZE ?=
CURL ?= 1
IMAGES ?= $(if $(shell pkg-config --exists libjpeg libpng 2>/dev/null && echo 1),1,0)
HWLOC ?= $(if $(shell pkg-config --exists hwloc 2>/dev/null && echo 1),1,0)
URING ?= $(if $(shell pkg-config --exists liburing 2>/dev/null && echo 1),1,0)
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

PKGS := jansson yaml-0.1 libxxhash libzstd libcrypto zlib libbrotlidec libbrotlienc libpcre2-8 libutf8proc libmicrohttpd \
	$(if $(filter 0,$(CURL)),,libcurl expat) $(if $(filter 0,$(IMAGES)),,libjpeg libpng) $(if $(filter 0,$(URING)),,liburing) \
	$(if $(filter 0,$(HWLOC)),,hwloc)
# The MPI flags are those of its compiler wrapper; Open MPI's and MPICH's wrappers support -show.
MPI_SHOW := $(shell $(MPICC) -show 2>/dev/null)
MPI_CFLAGS := $(filter -I% -D% -pthread,$(MPI_SHOW))
MPI_LIBS := $(filter -L% -l% -Wl% -pthread,$(MPI_SHOW))
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(PKGS) 2>/dev/null)

OPT := $(if $(filter 1,$(DEBUG)),-O0 -DCLT_DEBUG,-O2)
SAN := $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer)
# Builds with a sanitizer do not use -Werror, because the inserted checks cause false warnings of gcc.
# -ffp-contract=off gives host values that become part of the state defined bits (docs/numerics.md).
CFLAGS += -std=c11 -D_GNU_SOURCE -DCL_TARGET_OPENCL_VERSION=120 $(OPT) -g -fPIC -ffp-contract=off -Wall -Wextra \
	-Wno-missing-field-initializers $(if $(filter 1,$(WERROR)),$(if $(SANITIZE),,-Werror)) $(SAN) -MMD -MP -I. -I$(BUILD)/gen \
	$(PKG_CFLAGS) $(MPI_CFLAGS)
# These two have no file for pkg-config in every distribution.
LDLIBS := -lOpenCL $(PKG_LIBS) -lbz2 -lsnappy $(MPI_LIBS) -ldl -lpthread -lm
# The version is that of the public header. Programs linked with SONAME keep working with later libraries of
# the same SONAME.
VERSION := $(shell sed -n 's/^\#define CLTRAIN_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\)$$/\2/p' \
	runtime/include/cltrain/cltrain.h | paste -sd.)
SONAME := libcltrain.so.0
GIT_HASH ?= $(shell git rev-parse --short HEAD 2>/dev/null || echo unknown)
CFLAGS_clt_version := -DCLT_VERSION='"$(VERSION)"' -DCLT_GIT='"$(GIT_HASH)"'

LIB_SRC := $(wildcard runtime/base/*.c runtime/device/*.c runtime/ops/*.c runtime/ops/ref/*.c runtime/model/*.c runtime/model/*/*.c \
	runtime/data/*.c runtime/data/*/*.c runtime/checkpoint/*.c runtime/train/*/*.c runtime/api/*.c collectives/*.c)
OBJECT_NONE := runtime/object/clt_object_none.c
LIB_SRC += $(if $(filter 0,$(CURL)),$(OBJECT_NONE),$(filter-out $(OBJECT_NONE),$(wildcard runtime/object/*.c)))
IMAGE_NONE := runtime/data/image/clt_image_none.c
IMAGE_LIBS := runtime/data/image/clt_image_jpeg.c runtime/data/image/clt_image_png.c
LIB_SRC := $(filter-out $(if $(filter 0,$(IMAGES)),$(IMAGE_LIBS),$(IMAGE_NONE)),$(LIB_SRC))
URING_NONE := runtime/base/clt_aio_none.c
LIB_SRC := $(filter-out $(if $(filter 0,$(URING)),runtime/base/clt_aio_uring.c,$(URING_NONE)),$(LIB_SRC))
HWLOC_NONE := runtime/base/clt_topology_none.c
LIB_SRC := $(filter-out $(if $(filter 0,$(HWLOC)),runtime/base/clt_topology_hwloc.c,$(HWLOC_NONE)),$(LIB_SRC))
LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/obj/%.o) $(BUILD)/obj/gen/kernels.o
CLTRAIN_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tools/cltrain/*.c))
CLBENCH_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard tools/clbench/*.c))
KERNELS := $(sort $(wildcard clkernels/*/*.cl clkernels/*/*.clh clkernels/*/*.vt) clkernels/tuned.csv)
TEST_SRC := $(wildcard test/unit/test_*.c test/ops/test_*.c test/model/test_*.c test/train/test_*.c test/fault/test_*.c \
	$(if $(filter 0,$(CURL)),,test/object/test_*.c))
TEST_BIN := $(TEST_SRC:%.c=$(BUILD)/%)
# Fuzz targets, linked with a main function that replays files and mutations of them.
FUZZ_SRC := $(filter-out $(if $(filter 0,$(CURL)),test/fuzz/fuzz_s3_%),$(wildcard test/fuzz/fuzz_*.c))
FUZZ_BIN := $(FUZZ_SRC:%.c=$(BUILD)/%)
TEST_LIB_OBJ := $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard test/*.c))

.PHONY: FORCE all lib tests fuzz help clean setup setup-check demo vit-demo check check-long hop-table hop-curves test lint bench \
	bench-gpu bench-multi bench-object asan ubsan fuzz-run check-amd man docs install uninstall deb
all: $(BUILD)/cltrain $(BUILD)/clbench $(BUILD)/$(SONAME) tests fuzz
lib: $(BUILD)/libcltrain.a $(BUILD)/$(SONAME)
tests: $(TEST_BIN)
fuzz: $(FUZZ_BIN)

help:
	@sed -n 's/^## //p' $(MAKEFILE_LIST)
## make all          builds cltrain, clbench and the test programs into build/
## make demo         converts real text, trains a small model, generates text, on a CPU device
## make vit-demo     trains a small Vision Transformer on handwritten digits, on a CPU device; fails below 90 % accuracy
## make check        installs missing packages, builds, runs every test
## make hop-table    compares the hashes of a run on every device, with several ranks, microbatches, stops (EMULATOR=DIR: also AMD)
## make hop-curves   trains MPT-125M on real text with and without hops between two devices (OUT=folder; tools/hop_curves.sh)
## make check-long   runs the long forms of tests, test/long/*.sh: more kills, crash states, fuzzing (T= selects)
## make test         builds and runs every test without installing anything (T="PATTERN ..." selects)
## make fuzz-run     runs every fuzz target under libFuzzer, SECONDS=60 each, in build-fuzz/
## make lint         checks layers, formatting, scripts, links
## make bench        compares the speed on this CPU with the other systems that are installed
## make bench-gpu    compares the speed on a GPU with PyTorch on the same card
## make bench-multi  compares training on two GPUs with PyTorch (DDP, FSDP2, NCCL) and with one GPU (PARTS= selects)
## make bench-object  compares transfers to and from an object store with rclone and boto3 (PARTS= selects)
## make asan ubsan   runs the tests with small shapes under a sanitizer, in build-asan/ and build-ubsan/
## make check-amd    runs the kernels as AMD machine code on an emulator, EMULATOR=its source tree (tools/amd)
## make docs         writes docs/configuration.md from the program's table of keys
## make man          writes the man pages into build/man/
## make deb          builds Debian packages (cltrain, libcltrain0, libcltrain-dev) into build/deb/
## make install      installs into PREFIX (default /usr/local); DESTDIR is honoured
## make setup        installs the packages that building and running need

$(BUILD)/libcltrain.a: $(LIB_OBJ)
	@rm -f $@
	@ar rcs $@ $(LIB_OBJ)
	@echo "  AR    $@"

# Exports only what the public header declares.
$(BUILD)/$(SONAME): $(LIB_OBJ) runtime/api/cltrain.map
	@$(CC) $(CFLAGS) -shared -o $@ $(LIB_OBJ) -Wl,-soname,$(SONAME) -Wl,--version-script=runtime/api/cltrain.map \
	  -Wl,--no-undefined $(LDFLAGS) $(LDLIBS)
	@ln -sf $(SONAME) $(BUILD)/libcltrain.so
	@echo "  LINK  $@"
$(BUILD)/cltrain.pc: tools/build/cltrain.pc.in FORCE
	@sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(LIBDIR)|; s|@VERSION@|$(VERSION)|' $< > $@
$(BUILD)/cltrain: $(CLTRAIN_OBJ) $(BUILD)/libcltrain.a
	@$(CC) $(CFLAGS) -o $@ $(CLTRAIN_OBJ) $(BUILD)/libcltrain.a $(LDFLAGS) $(LDLIBS)
	@echo "  LINK  $@"
$(BUILD)/clbench: $(CLBENCH_OBJ) $(BUILD)/libcltrain.a
	@$(CC) $(CFLAGS) -o $@ $(CLBENCH_OBJ) $(BUILD)/libcltrain.a $(LDFLAGS) $(LDLIBS)
	@echo "  LINK  $@"
# An archive, so that a test links only the helper files that it uses.
$(BUILD)/libtest.a: $(TEST_LIB_OBJ)
	@rm -f $@
	@ar rcs $@ $(TEST_LIB_OBJ)
$(TEST_BIN): $(BUILD)/test/%: $(BUILD)/obj/test/%.o $(BUILD)/libtest.a $(BUILD)/libcltrain.a
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -o $@ $< $(BUILD)/libtest.a $(BUILD)/libcltrain.a $(LDFLAGS) -lcmocka $(LDLIBS)
	@echo "  LINK  $@"

# These tests link the simulator of clbench schedule.
SIM_OBJ := $(addprefix $(BUILD)/obj/tools/clbench/,sim.o step_sim.o numa_host.o)
$(BUILD)/test/unit/test_step_sim $(BUILD)/test/unit/test_numa_host: $(SIM_OBJ)
$(BUILD)/test/unit/test_step_sim $(BUILD)/test/unit/test_numa_host: private LDFLAGS += $(SIM_OBJ) $(BUILD)/libcltrain.a
# This test refuses requests for memory.
$(BUILD)/test/train/test_host_memory: private LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=aligned_alloc

$(FUZZ_BIN): $(BUILD)/%: %.c $(BUILD)/libcltrain.a
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -DFUZZ_REPLAY -o $@ $< $(BUILD)/libcltrain.a $(LDFLAGS) $(LDLIBS)
	@echo "  LINK  $@"

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(CFLAGS_$(notdir $*)) -c -o $@ $<
	@echo "  CC    $<"
# Rebuilt when the commit changes: program and checkpoints contain its hash.
$(BUILD)/obj/runtime/base/clt_version.o: $(BUILD)/gen/version
$(BUILD)/gen/version: FORCE
	@mkdir -p $(@D)
	@echo '$(VERSION) $(GIT_HASH)' | cmp -s - $@ || echo '$(VERSION) $(GIT_HASH)' > $@
FORCE:
# The OpenCL C files become part of the program.
$(BUILD)/gen/kernels.c: $(KERNELS) $(BUILD)/embed
	@mkdir -p $(@D)
	@$(BUILD)/embed $(KERNELS) > $@.tmp && mv $@.tmp $@
	@echo "  EMBED $(words $(KERNELS)) kernel files"
$(BUILD)/obj/gen/kernels.o: $(BUILD)/gen/kernels.c
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) -c -o $@ $<
$(BUILD)/embed: tools/build/embed.c
	@mkdir -p $(@D)
	@$(HOSTCC) -std=c11 -O1 -Wall -Wextra -o $@ $<

# The build is a separate make, because the packages that setup installs change the flags above.
setup:
	@BUILD=$(BUILD) tools/setup.sh
setup-check:
	@BUILD=$(BUILD) tools/setup.sh --check
demo: setup
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/demo.sh
vit-demo: setup
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/vit_demo.sh
# What only tests need is installed during the build.
check: setup
	@+BUILD=$(BUILD) tools/setup.sh --check & $(MAKE) --no-print-directory -s -j$(JOBS) all; built=$$?; wait $$! && exit $$built
	@BUILD=$(BUILD) test/run.sh $(T)
check-long: setup-check
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) test/run.sh --long $(T)
test:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) test/run.sh $(T)
hop-table:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) test/long/hop_table.sh
hop-curves:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/hop_curves.sh $(or $(OUT),hop-curves)
lint:
	@tools/lint.sh
bench:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/bench.sh
bench-gpu:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/bench_gpu.sh
bench-multi:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/bench_multi.sh $(if $(PARTS),--parts "$(PARTS)")
bench-object:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) tools/bench_object.sh $(if $(PARTS),--parts "$(PARTS)")
asan:
	@+BUILD=build-asan JOBS=$(JOBS) test/sanitize.sh address $(T)
ubsan:
	@+BUILD=build-ubsan JOBS=$(JOBS) test/sanitize.sh undefined $(T)
# Each target of test/fuzz for SECONDS seconds, with clang's libFuzzer, from test/fuzz/seeds/TARGET if there is such a
# folder; finds are left in build-fuzz/.
SECONDS ?= 60
fuzz-run:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) build-fuzz/libcltrain.a BUILD=build-fuzz CC=clang SANITIZE=address,undefined,fuzzer-no-link
	@for f in $(FUZZ_SRC); do n=build-fuzz/$$(basename $$f .c); mkdir -p $$n.corpus; \
	  clang $(CFLAGS) -Ibuild-fuzz/gen -fsanitize=address,undefined,fuzzer -o $$n $$f build-fuzz/libcltrain.a $(LDLIBS) && \
	  $$n -max_total_time=$(SECONDS) -rss_limit_mb=4096 -print_final_stats=1 -artifact_prefix=$$n- $$n.corpus \
	    $$(ls -d test/fuzz/seeds/$$(basename $$n) 2>/dev/null) || exit 1; done
check-amd:
	@+$(MAKE) --no-print-directory -s -j$(JOBS) all
	@BUILD=$(BUILD) EMULATOR=$(EMULATOR) tools/amd/check.sh
man: $(BUILD)/cltrain $(BUILD)/clbench
	@tools/man/make.sh $(BUILD) $(BUILD)/man
docs: $(BUILD)/cltrain
	@tools/docs.sh $(BUILD)/cltrain

PREFIX ?= /usr/local
LIBDIR ?= $(PREFIX)/lib
SHARE := $(DESTDIR)$(PREFIX)/share
install: man lib $(BUILD)/cltrain.pc
	install -D -m 755 -t $(DESTDIR)$(PREFIX)/bin $(BUILD)/cltrain $(BUILD)/clbench
	install -D -m 644 -t $(SHARE)/man/man1 $(BUILD)/man/cltrain.1 $(BUILD)/man/clbench.1
	install -D -m 644 tools/man/cltrain.bash $(SHARE)/bash-completion/completions/cltrain
	install -D -m 644 -t $(SHARE)/cltrain/presets tools/presets/*.yaml
	install -D -m 755 -t $(SHARE)/cltrain/demo tools/demo.sh tools/demo_text.sh tools/collect_text.sh
	install -D -m 644 -t $(SHARE)/cltrain/demo tools/demo.yaml
	install -D -m 644 $(BUILD)/$(SONAME) $(DESTDIR)$(LIBDIR)/libcltrain.so.$(VERSION)
	ln -sf libcltrain.so.$(VERSION) $(DESTDIR)$(LIBDIR)/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(LIBDIR)/libcltrain.so
	install -D -m 644 -t $(DESTDIR)$(LIBDIR) $(BUILD)/libcltrain.a
	install -D -m 644 -t $(DESTDIR)$(LIBDIR)/pkgconfig $(BUILD)/cltrain.pc
	install -D -m 644 -t $(DESTDIR)$(PREFIX)/include/cltrain runtime/include/cltrain/cltrain.h
uninstall:
	rm -f $(DESTDIR)$(PREFIX)/bin/cltrain $(DESTDIR)$(PREFIX)/bin/clbench
	rm -f $(SHARE)/man/man1/cltrain.1 $(SHARE)/man/man1/clbench.1
	rm -f $(SHARE)/bash-completion/completions/cltrain
	rm -f $(DESTDIR)$(LIBDIR)/libcltrain.a $(DESTDIR)$(LIBDIR)/libcltrain.so* $(DESTDIR)$(LIBDIR)/pkgconfig/cltrain.pc
	rm -rf $(SHARE)/cltrain $(DESTDIR)$(PREFIX)/include/cltrain

# Packages are built in a copy of the tree, because debian/ must be in its root.
deb:
	@rm -rf $(BUILD)/deb && mkdir -p $(BUILD)/deb/cltrain-$(VERSION)
	@git ls-files -z | xargs -0 cp --parents -t $(BUILD)/deb/cltrain-$(VERSION)
	@cp -r tools/debian $(BUILD)/deb/cltrain-$(VERSION)/debian
	@tools/debian/changelog.sh $(VERSION) > $(BUILD)/deb/cltrain-$(VERSION)/debian/changelog
	@cd $(BUILD)/deb/cltrain-$(VERSION) && DEB_BUILD_OPTIONS="nocheck parallel=$(JOBS)" GIT_HASH=$(GIT_HASH) \
	  dpkg-buildpackage -us -uc -b
	@ls $(BUILD)/deb/*.deb

clean:
	rm -rf $(BUILD) build-asan build-ubsan build-fuzz

-include $(LIB_OBJ:.o=.d) $(CLTRAIN_OBJ:.o=.d) $(CLBENCH_OBJ:.o=.d) $(TEST_SRC:%.c=$(BUILD)/obj/%.d) $(TEST_LIB_OBJ:.o=.d)
