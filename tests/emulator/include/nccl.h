// The part of NCCL that Maxim uses, with NCCL's names and values, between processes of one mpirun.
//
// A collective (or the end of a group) runs what its stream holds, reads the inputs, exchanges them
// over MPI at once and queues the landing of the results on the stream. There the inputs must still
// be what they were. So a missing event ahead of a collective shows, and one behind it, and a host
// that goes on to a host message never hangs. Ranks that do not call the same are a Fault on every
// rank, with both calls, and so are those of which some finalize; a rank that waits for others for
// MAXIM_EMULATED_NCCL_SECONDS (60) is one too, with the ranks it waits for. Sums are taken around a ring, and bf16 is rounded at each step.
#pragma once

#include <climits>
#include <cstddef>

#include "cuda_runtime.h"

typedef struct ncclComm* ncclComm_t;
struct ncclUniqueId {
  char internal[128];
};
enum ncclResult_t {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclRedOp_t { ncclSum = 0, ncclMax = 2 };
enum ncclDataType_t { ncclUint8 = 1, ncclFloat32 = 7, ncclBfloat16 = 9 };
struct ncclConfig_t {
  int blocking;
};
#define NCCL_CONFIG_INITIALIZER \
  { INT_MIN }
#define NCCL_VERSION_CODE 22809

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
// Only with blocking = 0. All processes of the mpirun are its ranks, each with a GPU of its own.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
// After each call that is in progress it says so once more. MAXIM_EMULATED_NCCL_ERROR=N: a remote
// error from the Nth collective on.
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclAllGather(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduceScatter(const void* in, void* out, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclAllReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclReduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclBroadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream);
