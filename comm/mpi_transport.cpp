#include "comm/mpi_transport.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>

#include "runtime/error.h"

namespace maxim {
namespace {

constexpr int kTag = 1;
constexpr int64_t kPieceBytes = 4 << 20;  // of one message: MPI counts have 31 bits
// Between two looks of a patient wait: short beside the milliseconds that a bucket takes.
constexpr auto kNap = std::chrono::microseconds(50);

void check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail("{} failed: {}", call, std::string(text, length));
}

}  // namespace

MpiTransport::MpiTransport(MPI_Comm parent, bool patient) : patient_(patient) {
  check(MPI_Comm_dup(parent, &comm_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
}

MpiTransport::~MpiTransport() { MPI_Comm_free(&comm_); }

void MpiTransport::send(const void* data, int64_t bytes, int to) {
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    sends_.push_back(MPI_REQUEST_NULL);
    check(MPI_Isend(static_cast<const char*>(data) + begin,
                    static_cast<int>(std::min(kPieceBytes, bytes - begin)), MPI_BYTE, to, kTag,
                    comm_, &sends_.back()),
          "MPI_Isend");
  }
}

void MpiTransport::receive(void* data, int64_t bytes, int from) {
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    receives_.push_back(MPI_REQUEST_NULL);
    check(MPI_Irecv(static_cast<char*>(data) + begin,
                    static_cast<int>(std::min(kPieceBytes, bytes - begin)), MPI_BYTE, from, kTag,
                    comm_, &receives_.back()),
          "MPI_Irecv");
  }
}

void MpiTransport::wait(std::vector<MPI_Request>& requests) {
  const int count = static_cast<int>(requests.size());
  int done = 0;
  while (patient_ && !done) {
    check(MPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    if (!done) std::this_thread::sleep_for(kNap);
  }
  if (!patient_) check(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
  requests.clear();
}

}  // namespace maxim
