# Maxim. `make` builds the four programs, `make test` proves them, `make demo` shows them.
# Knobs: DEBUG=1 (no optimisation), SANITIZE=address|undefined|thread, MARCH=native|x86-64-v3|… (instruction set),
# CUDA=0|1 (1 where nvcc is), ARCH=80,90a,… (GPU architectures).

CXX := g++
MARCH ?= native
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc)
endif
BUILD := build$(if $(SANITIZE),/$(SANITIZE))$(if $(DEBUG),/debug)
PROGRAMS := train evaluate encode search
DEMO_PROGRAMS = $(BUILD)/demo/wordnet $(BUILD)/demo/bm25
ROOMS := runtime kernels comm model loss data trainer

# The CUDA backend is built where nvcc is. libcudart finds the driver when it runs, so the programs start without one.
NVCC := $(or $(shell command -v nvcc),$(wildcard /usr/local/cuda/bin/nvcc))
CUDA ?= $(if $(NVCC),1,0)
ifeq ($(CUDA),1)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
comma := ,
# Of 8.0, 9.0 and 10.0 what this nvcc knows; and PTX, from which the driver makes code for later GPUs.
KNOWN_ARCH := $(shell $(NVCC) --list-gpu-arch)
ARCH ?= $(subst $() ,$(comma),$(strip $(foreach a,80 90a 100a,$(if $(filter compute_$(a:a=),$(KNOWN_ARCH)),$(a)))))
NVCCFLAGS = -std=c++20 -O3 -lineinfo $(foreach a,$(subst $(comma), ,$(ARCH)),-gencode arch=compute_$(a),code=sm_$(a)) \
            -gencode arch=compute_80,code=compute_80 -Xcompiler -Wall,-Wextra -Werror all-warnings
# Several ranks on GPUs need NCCL, which does not come with every toolkit.
NCCL := $(if $(wildcard $(CUDA_HOME)/include/nccl.h /usr/include/nccl.h),1,0)
CUDA_FLAGS := -DMAXIM_NCCL=$(NCCL) -isystem $(CUDA_HOME)/include
CUDA_LIBS := -L$(CUDA_HOME)/lib64 -Wl,-rpath,$(CUDA_HOME)/lib64 -lcublasLt -lcudart $(if $(filter 1,$(NCCL)),-lnccl)
endif

CPPFLAGS = -I. -MMD -MP -DMAXIM_CUDA=$(CUDA) -DFMT_SHARED -DSPDLOG_COMPILED_LIB -DSPDLOG_FMT_EXTERNAL -DOMPI_SKIP_MPICXX $(CUDA_FLAGS) $(MPI_CFLAGS)
# -Wno-restrict: GCC 12 sees overlap in "text" + std::string (its bug 105651).
CXXFLAGS = -std=c++20 -march=$(MARCH) -fopenmp -g -Wall -Wextra -Werror -Wno-restrict $(if $(DEBUG),-O0,-O3) \
           $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer -Wno-maybe-uninitialized -Wno-stringop-overflow)
LDLIBS = -lspdlog -lfmt -lz -lutf8proc -lgloo $(MPI_LIBS) $(CUDA_LIBS) -ldl -lpthread

objects_of = $(patsubst %,$(BUILD)/%.o,$(basename $(1)))
objects = $(call objects_of,$(wildcard $(addsuffix /*.cpp,$(1))))
CUDA_SOURCES := $(wildcard kernels/cuda/*.cpp kernels/cuda/*.cu runtime/cuda*.cpp)
NCCL_SOURCES := $(wildcard comm/nccl*.cpp)
LIBRARY := $(filter-out $(call objects_of,$(CUDA_SOURCES) $(NCCL_SOURCES)),$(call objects,$(ROOMS) kernels/cpu))
ifeq ($(CUDA),1)
LIBRARY += $(call objects_of,$(CUDA_SOURCES) $(if $(filter 1,$(NCCL)),$(NCCL_SOURCES)))
endif
TEST_ROOMS := $(addprefix tests/,$(ROOMS) reference)  # one binary; the others have their own

.PHONY: all test emulated bench device-check demo demo-offline format clean deps
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
# The program has the name of its folder, so the objects have it in front of theirs.
BENCH := $(patsubst bench/kernels/%.cpp,bench/kernels-%.o,$(wildcard bench/kernels/*.cpp)) \
  $(patsubst %.cpp,%.o,$(filter-out %/compare.cpp,$(wildcard tests/reference/*.cpp)))
$(BUILD)/bench/kernels: $(addprefix $(BUILD)/,$(BENCH)) $(filter $(addprefix $(BUILD)/,kernels/% runtime/%),$(LIBRARY))
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(BUILD)/bench/collectives: $(BUILD)/bench/collectives.o $(LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
define compile
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -c -o $@ $<
endef
$(BUILD)/bench/kernels-%.o: bench/kernels/%.cpp $(BUILD)/cuda-$(CUDA)
	$(compile)
$(BUILD)/%.o: %.cpp $(BUILD)/cuda-$(CUDA)
	$(compile)
# fmt 9 takes constexpr away from nvcc, and then its own checks of formats do not compile.
$(BUILD)/%.o: %.cu $(BUILD)/cuda-$(CUDA)
	@mkdir -p $(@D)
	$(NVCC) -I. -MMD -MP -DMAXIM_CUDA=1 -DFMT_SHARED -DFMT_USE_CONSTEXPR=1 $(NVCCFLAGS) -c -o $@ $<
$(BUILD)/cuda-$(CUDA):  # all is built again when CUDA changes
	@mkdir -p $(@D); rm -f $(BUILD)/cuda-*; touch $@

# CUDA without a GPU: g++ compiles the CUDA sources against the emulator's headers (tests/emulator/include).
EMULATED := $(BUILD)/emulated
emulated_objects = $(patsubst %,$(EMULATED)/%.o,$(basename $(1)))
EMULATOR_TESTS := $(wildcard tests/emulator/*_test.cpp)
EMULATOR := $(call emulated_objects,$(filter-out $(EMULATOR_TESTS),$(wildcard tests/emulator/*.cpp)))
EMULATED_LIBRARY := $(EMULATOR) $(call emulated_objects,$(wildcard $(addsuffix /*.cpp,$(ROOMS) kernels/cpu)) \
  $(filter-out runtime/%,$(CUDA_SOURCES)))
$(EMULATED)/%: override CUDA := 1
$(EMULATED)/%: override CUDA_FLAGS := -DMAXIM_NCCL=1 -Itests/emulator/include
$(EMULATED)/%: override CUDA_LIBS := -lboost_context
emulated: $(addprefix $(EMULATED)/,train tests/emulator_tests tests/unit_tests tests/mpi_tests bench/kernels)
$(EMULATED)/train: $(EMULATED)/apps/train.o $(EMULATED_LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(EMULATED)/tests/unit_tests: $(call emulated_objects,$(wildcard $(addsuffix /*.cpp,tests $(TEST_ROOMS)))) $(EMULATED_LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(EMULATED)/tests/mpi_tests: $(call emulated_objects,tests/run_catch $(wildcard tests/mpi/*.cpp tests/emulator/ranks/*.cpp tests/reference/*.cpp)) $(EMULATED_LIBRARY)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(EMULATED)/tests/emulator_tests: $(call emulated_objects,tests/main tests/run_catch $(EMULATOR_TESTS)) $(EMULATOR)
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
$(EMULATED)/bench/kernels: $(addprefix $(EMULATED)/,$(BENCH)) $(EMULATOR) \
  $(filter $(addprefix $(EMULATED)/,kernels/% runtime/%),$(EMULATED_LIBRARY))
	$(CXX) $(CXXFLAGS) -o $@ $^ $(LDLIBS)
define emulate
	@mkdir -p $(@D)
	$(CXX) $(CPPFLAGS) $(CXXFLAGS) -Wno-unknown-pragmas -c -o $@ -x c++ $<
endef
$(EMULATED)/bench/kernels-%.o: bench/kernels/%.cpp
	$(emulate)
$(EMULATED)/%.o: %.cpp
	$(emulate)
$(EMULATED)/%.o: %.cu
	$(emulate)

test: $(PROGRAMS) $(DEMO_PROGRAMS) emulated $(addprefix $(BUILD)/tests/,unit_tests mpi_tests program_tests) $(BUILD)/bench/collectives
	bash tests/run.sh $(BUILD)
bench: $(BUILD)/bench/kernels
	$< --device cpu --tokens 2048
demo: $(PROGRAMS) $(DEMO_PROGRAMS)
	@bash demo/run.sh
demo-offline: $(PROGRAMS) $(DEMO_PROGRAMS)
	@bash demo/run.sh --offline
device-check:  # what needs a GPU; leaves build/device_check.json
	@python3 tests/cuda/device_check.py
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
  libutf8proc-dev:/usr/include/utf8proc.h libboost-context-dev:/usr/include/boost/context \
  libgloo-dev:/usr/include/gloo
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
