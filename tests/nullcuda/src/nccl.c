// NCCL: versions and handles; nothing travels.
#define API __attribute__((visibility("default")))
static char communicator[4096];
API int ncclGetVersion(int *version) { *version = 22907; return 0; }
API const char *ncclGetErrorString(int error) { return "an error of the null NCCL"; }
API const char *ncclGetLastError(void *comm) { return "an error of the null NCCL"; }
API int ncclCommGetAsyncError(void *comm, int *error) { *error = 0; return 0; }
API int ncclCommInitRankConfig(void **comm, int n, char id[128], int rank, void *config) { *comm = communicator; return 0; }
API int ncclCommInitRank(void **comm, int n, char id[128], int rank) { *comm = communicator; return 0; }
API int ncclCommInitRankScalable(void **comm, int n, int rank, int ids, void *id, void *config) { *comm = communicator; return 0; }
API int ncclCommSplit(void *comm, int color, int key, void **made, void *config) { *made = communicator; return 0; }
