# Maxim. `make` builds the four programs, `make test` proves them, `make demo` shows them.
# Knobs: DEBUG=1 (no optimisation), SANITIZE=address|undefined|thread, MARCH=native|x86-64-v3|… (instruction set).

CXX := g++
MARCH ?= native
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
BUILD := build$(if $(SANITIZE),/$(SANITIZE))$(if $(DEBUG),/debug)
PROGRAMS := train evaluate encode search
DEMO_PROGRAMS = $(BUILD)/demo/wordnet $(BUILD)/demo/bm25
ROOMS := runtime kernels comm model loss data trainer

CPPFLAGS = -I. -MMD -MP -DFMT_SHARED -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -DOMPI_SKIP_MPICXX $(MPI_CFLAGS)
# -Wno-restrict: GCC 12 sees overlap in "text" + std::string (its bug 105651).
CXXFLAGS = -std=c++20 -march=$(MARCH) -fopenmp -g -Wall -Wextra -Werror -Wno-restrict $(if $(DEBUG),-O0,-O3) \
           $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -Wno-maybe-uninitialized)
LDLIBS = -lspdlog -lfmt -lz -lutf8proc $(MPI_LIBS) -ldl -lpthread

objects = $(patsubst %.cpp,$(BUILD)/%.o,$(wildcard $(addsuffix /*.cpp,$(1))))
LIBRARY := $(call objects,$(ROOMS) kernels/cpu)
TEST_ROOMS := $(addprefix tests/,$(ROOMS) reference)  # one binary; the others have their own

.PHONY: all test emulated demo demo-offline format clean deps
.SECONDARY:
all: $(PROGRAMS)

$(PROGRAMS): %: $(BUILD)/apps/%.o $(LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(DEMO_PROGRAMS): %: %.o $(LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/tests/unit_tests: $(call objects,tests $(TEST_ROOMS)) $(LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/tests/mpi_tests: $(BUILD)/tests/run_catch.o $(call objects,tests/mpi tests/reference) $(LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/tests/program_tests: $(call objects,tests tests/apps tests/demo) $(LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/%.o: %.cpp
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<

# CUDA without a GPU: g++ compiles the CUDA sources against the emulator's headers (tests/emulator/include).
EMULATED := $(BUILD)/emulated
emulated_objects = $(patsubst %,$(EMULATED)/%.o,$(basename $(1)))
EMULATOR_TESTS := $(wildcard tests/emulator/*_test.cpp)
EMULATOR := $(call emulated_objects,$(filter-out $(EMULATOR_TESTS),$(wildcard tests/emulator/*.cpp)))
emulated: $(EMULATED)/tests/emulator_tests
$(EMULATED)/tests/emulator_tests: $(call emulated_objects,tests/main tests/run_catch $(EMULATOR_TESTS)) $(EMULATOR)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS) -lboost_context
define emulate
	@mkdir -p $(@D)
	$(CXX) -Itests/emulator/include -DMAXIM_CUDA=1 $(CPPFLAGS) $(CXXFLAGS) -Wno-unknown-pragmas -c -o $@ -x c++ $<
endef
$(EMULATED)/%.o: %.cpp
	$(emulate)
$(EMULATED)/%.o: %.cu
	$(emulate)

test: $(PROGRAMS) $(DEMO_PROGRAMS) emulated $(addprefix $(BUILD)/tests/,unit_tests mpi_tests program_tests)
	bash tests/run.sh $(BUILD)
demo: $(PROGRAMS) $(DEMO_PROGRAMS)
	@bash demo/run.sh
demo-offline: $(PROGRAMS) $(DEMO_PROGRAMS)
	@bash demo/run.sh --offline
build/minilm:  # the weights that the demo and some golden tests use
	@bash demo/run.sh --model
format:
	clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cuh' '*.cu')
clean:
	rm -rf build $(PROGRAMS)

# What a fresh Debian or Ubuntu machine lacks: package:file that shows it is there. build/deps.mk is included, so make
# writes it (installing what is missing) before anything else, and starts over.
PACKAGES := g++:/usr/bin/g++ libopenmpi-dev:/usr/bin/mpicxx openmpi-bin:/usr/bin/mpirun \
  libopenblas0-pthread:/usr/share/doc/libopenblas0-pthread catch2:/usr/include/catch2 \
  libcli11-dev:/usr/include/CLI/CLI.hpp nlohmann-json3-dev:/usr/include/nlohmann/json.hpp \
  libspdlog-dev:/usr/include/spdlog/spdlog.h libfmt-dev:/usr/include/fmt/format.h zlib1g-dev:/usr/include/zlib.h \
  libutf8proc-dev:/usr/include/utf8proc.h libboost-context-dev:/usr/include/boost/context
deps:
	@rm -f build/deps.mk; $(MAKE) --no-print-directory build/deps.mk
build/deps.mk: Makefile
	@mkdir -p build
	@missing=$$(for p in $(PACKAGES); do test -e "$${p#*:}" || echo "$${p%%:*}"; done); \
	if [ -n "$$missing" ]; then \
	  if [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing; \
	  else \
	    echo "Missing packages: $$missing"; \
	    echo "Install them with: sudo apt-get install" $$missing; exit 1; \
	  fi; \
	fi
	@{ echo "MPI_CFLAGS := $$(mpicxx --showme:compile)"; echo "MPI_LIBS := $$(mpicxx --showme:link)"; } > $@
ifeq ($(filter clean format deps,$(MAKECMDGOALS)),)
include build/deps.mk
endif

-include $(shell find build -name '*.d' 2>/dev/null)
