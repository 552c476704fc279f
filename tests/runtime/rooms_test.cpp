// The rooms of design: an include may only point down this list, only comm talks to MPI or NCCL,
// and only kernels/cuda, runtime/cuda* and comm/nccl* see CUDA.
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/catch.h"

namespace {

namespace fs = std::filesystem;

// room -> rooms it may include besides itself
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"runtime", {}},
    {"kernels", {"runtime"}},
    {"comm", {"runtime", "kernels"}},
    {"model", {"comm", "kernels", "runtime"}},
    {"loss", {"comm", "kernels", "runtime"}},
    {"data", {"comm", "kernels", "runtime"}},
    {"trainer", {"loss", "model", "data", "comm", "kernels", "runtime"}},
    {"apps", {"trainer", "loss", "model", "data", "comm", "kernels", "runtime"}},
};

std::string first_folder(const std::string& path) { return path.substr(0, path.find('/')); }

bool may_see_cuda(const std::string& file) {
  return file.find("kernels/cuda/") == 0 || file.find("runtime/cuda") == 0 ||
         file.find("comm/nccl") == 0;
}

// "file:line: text" of every include that is not allowed, and of every MPI or NCCL symbol outside
// comm.
std::vector<std::string> violations(const std::string& file, std::istream& text) {
  static const std::regex include(R"(^\s*#\s*include\s*["<]([^">]+)[">])");
  static const std::regex message_passing(
      R"(\b(MPI_[A-Z][a-z]|MPI_COMM_|nccl[A-Z])|<(mpi|nccl)\.h>)");
  static const std::regex cuda_header(
      R"(<(cuda|cub|cublas|curand|nccl)|"runtime/cuda_|"kernels/cuda/.*\.cuh|"kernels/cuda/cu)");
  const std::string room = first_folder(file);
  std::vector<std::string> found;
  std::string line;
  for (int number = 1; std::getline(text, line); ++number) {
    std::smatch match;
    bool bad = false;
    if (std::regex_search(line, match, include)) {
      const std::string target = first_folder(match[1]);
      bad = kMayInclude.count(target) > 0 && target != room &&
            kMayInclude.at(room).count(target) == 0;
      bad = bad || target == "tests";
      bad = bad || (std::regex_search(line, cuda_header) && !may_see_cuda(file));
    }
    bad = bad || (room != "comm" && std::regex_search(line, message_passing));
    if (bad) found.push_back(file + ":" + std::to_string(number) + ": " + line);
  }
  return found;
}

}  // namespace

TEST_CASE("no include points up; MPI, NCCL and CUDA stay in their rooms", "[rooms]") {
  int files = 0;
  for (const auto& [room, _] : kMayInclude) {
    for (const auto& entry : fs::recursive_directory_iterator(room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh")
        continue;
      ++files;
      std::ifstream text(entry.path());
      for (const std::string& violation : violations(entry.path().string(), text))
        FAIL_CHECK(violation);
    }
  }
  CHECK(files > 20);
}

TEST_CASE("the room check sees a violation", "[rooms]") {
  std::istringstream text(
      "#include \"data/sampler.h\"\n#include \"runtime/tensor.h\"\n#include <vector>\n"
      "MPI_Barrier(MPI_COMM_WORLD);\n#include \"trainer/schedule.h\"\n");
  CHECK(violations("loss/contrastive.cpp", text).size() == 3);
  const auto sees_cuda = [](const std::string& file) {
    std::istringstream text("#include <cuda_runtime.h>\n#include \"kernels/cuda/cuda_ops.h\"\n");
    return violations(file, text).size();
  };
  CHECK(sees_cuda("model/encoder.cpp") == 2);
  CHECK(sees_cuda("kernels/cuda/gemm.cu") == 0);
}
