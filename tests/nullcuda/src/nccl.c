// NCCL among ranks of one machine. What each gives goes through a file in memory that all have mapped: a rank adds what
// it gives when it issues a collective, and waits there for what the others give; the result arrives on the stream as
// late as a copy. Ranks that do not ask for the same are refused. What is not written here fails, and says so.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
// Of the runtime, see streams.c.
int nullcuda_device(void);
void *nullcuda_stream(void *handle);
int nullcuda_carries(size_t bytes);
int nullcuda_taken(void *stream, const void *from, size_t bytes);
int nullcuda_given(void *stream, void *to, void *result, size_t bytes);

#define RANKS 8
#define ROOM (1L << 40)  // bytes of the file that are a rank's

enum { OK, SYSTEM_ERROR = 2, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5 };
enum kind { ALL_GATHER, ALL_REDUCE, BROADCAST };

typedef struct { char text[128]; } ncclUniqueId;

// How many bytes each rank has given since the beginning, and how many each has taken of each other's.
struct board { volatile long given[RANKS], taken[RANKS][RANKS]; };
struct communicator {
  int rank, ranks, file, device;
  volatile int aborted;
  long given, taken[RANKS], freed;
  struct board *board;
};
struct message { enum kind kind; int type, operation, root; size_t bytes; };
struct call {
  struct message message;
  struct communicator *comm;
  const void *from;
  void *to, *stream;
};

static __thread struct call calls[64];
static __thread int waiting, depth;

static int refuse(const char *what) {
  fprintf(stderr, "nullcuda: NCCL: %s\n", what);
  return INVALID_USAGE;
}

// --- what is written to and read from the file ---

static int write_all(struct communicator *c, const void *data, size_t bytes) {
  long at = sizeof(struct board) + c->rank * ROOM + c->given;
  c->given += bytes;
  for (ssize_t n; bytes; bytes -= n, at += n, data = (const char *)data + n)
    if ((n = pwrite(c->file, data, bytes, at)) <= 0) return SYSTEM_ERROR;
  return OK;
}

static int read_all(struct communicator *c, int other, void *data, size_t bytes) {
  long at = sizeof(struct board) + other * ROOM + c->taken[other], end = c->taken[other] += bytes;
  const char *patience = getenv("NULLCUDA_PATIENCE");
  for (time_t last = time(0) + (patience ? atoi(patience) : 300); c->board->given[other] < end; usleep(20)) {
    if (c->aborted) return INTERNAL_ERROR;
    if (time(0) > last) return refuse("a rank does not come");
  }
  __sync_synchronize();
  for (ssize_t n; bytes; bytes -= n, at += n, data = (char *)data + n)
    if ((n = pread(c->file, data, bytes, at)) <= 0) return SYSTEM_ERROR;
  c->board->taken[c->rank][other] = end;
  return OK;
}

// Gives back the pages of the file that all others have read.
static void free_read(struct communicator *c) {
  long read = c->given;
  for (int other = 0; other < c->ranks; other++)
    if (c->board->taken[other][c->rank] < read) read = c->board->taken[other][c->rank];
  if (read - c->freed < 1 << 20) return;
  fallocate(c->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, sizeof(struct board) + c->rank * ROOM + c->freed, read - c->freed);
  c->freed = read;
}

// --- collectives ---

static int gives(const struct call *call) {
  return call->message.kind != BROADCAST || call->message.root == call->comm->rank;
}

static int give(struct call *call) {
  struct communicator *c = call->comm;
  struct message *m = &call->message;
  if (gives(call) && nullcuda_taken(call->stream, call->from, m->bytes)) return INVALID_ARGUMENT;
  int error = write_all(c, m, sizeof *m);
  if (!error && gives(call) && nullcuda_carries(m->bytes)) error = write_all(c, call->from, m->bytes);
  __sync_synchronize();
  c->board->given[c->rank] = c->given;
  free_read(c);
  return error;
}

#define REDUCE(TYPE)                                                                                       \
  for (size_t i = 0; i < bytes / sizeof(TYPE); i++) {                                                      \
    TYPE *a = (TYPE *)into + i, b = ((const TYPE *)other)[i];                                              \
    *a = operation == 0 ? *a + b : operation == 1 ? *a * b : (operation == 2 ? b > *a : b < *a) ? b : *a; \
  }
static void reduce(void *into, const void *other, size_t bytes, int type, int operation) {
  switch (type) {
    case 0: REDUCE(int8_t) break;
    case 1: REDUCE(uint8_t) break;
    case 2: REDUCE(int32_t) break;
    case 4: REDUCE(int64_t) break;
    case 7: REDUCE(float) break;
    case 8: REDUCE(double) break;
  }
}

static int take(struct call *call) {
  struct communicator *c = call->comm;
  struct message *m = &call->message, told;
  size_t whole = m->bytes * (m->kind == ALL_GATHER ? c->ranks : 1);
  char *result = calloc(1, whole), *part = calloc(1, m->bytes);
  int error = OK;
  for (int other = 0; other < c->ranks && !error; other++) {
    error = read_all(c, other, &told, sizeof told);
    if (!error && memcmp(&told, m, sizeof told)) error = refuse("the ranks do not ask for the same");
    if (error || (m->kind == BROADCAST && other != m->root) || !nullcuda_carries(m->bytes)) continue;
    error = read_all(c, other, part, m->bytes);
    if (m->kind == ALL_REDUCE && other) reduce(result, part, m->bytes, m->type, m->operation);
    else memcpy(result + (m->kind == ALL_GATHER ? other * m->bytes : 0), part, m->bytes);
  }
  free(part);
  if (!error) return nullcuda_given(call->stream, call->to, result, whole) ? INVALID_ARGUMENT : OK;
  free(result);
  return error;
}

static int finish(void) {
  int error = OK, n = waiting;
  waiting = 0;
  for (int i = 0; i < n && !error; i++) error = give(&calls[i]);
  for (int i = 0; i < n && !error; i++) error = take(&calls[i]);
  return error;
}

API int ncclGroupStart(void) { depth++; return OK; }
API int ncclGroupEnd(void) { return --depth ? OK : finish(); }

static int issue(enum kind kind, const void *from, void *to, size_t count, int type, int operation, int root, void *comm, void *stream) {
  static const int sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  if (waiting == sizeof calls / sizeof *calls) return refuse("too many collectives in a group");
  if (kind == ALL_REDUCE && (operation > 3 || type == 3 || type == 5 || type == 6 || type > 8))
    return refuse("this reduction is not written");
  struct call *call = &calls[waiting++];
  memset(call, 0, sizeof *call);  // the message is compared by its bytes
  call->message.kind = kind;
  call->message.type = type;
  call->message.operation = operation;
  call->message.root = root;
  call->message.bytes = count * sizes[type];
  call->comm = comm;
  call->from = from;
  call->to = to;
  call->stream = nullcuda_stream(stream);  // the default one is that of the device which is current now
  return depth ? OK : finish();
}
API int ncclAllGather(const void *from, void *to, size_t count, int type, void *comm, void *stream) {
  return issue(ALL_GATHER, from, to, count, type, 0, 0, comm, stream);
}
API int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation, void *comm, void *stream) {
  return issue(ALL_REDUCE, from, to, count, type, operation, 0, comm, stream);
}
API int ncclBroadcast(const void *from, void *to, size_t count, int type, int root, void *comm, void *stream) {
  return issue(BROADCAST, from, to, count, type, 0, root, comm, stream);
}
API int ncclBcast(void *both, size_t count, int type, int root, void *comm, void *stream) {
  return issue(BROADCAST, both, both, count, type, 0, root, comm, stream);
}
#define NOT_WRITTEN(name) API int name(void) { return refuse(#name " is not written"); }
NOT_WRITTEN(ncclReduce)
NOT_WRITTEN(ncclReduceScatter)
NOT_WRITTEN(ncclAlltoAll)
NOT_WRITTEN(ncclSend)
NOT_WRITTEN(ncclRecv)
NOT_WRITTEN(ncclCommSplit)
NOT_WRITTEN(ncclCommShrink)

// --- communicators ---

// The id is where the file is open: it has no name, and is gone with the last that has it.
API int ncclGetUniqueId(ncclUniqueId *id) {
  int file = memfd_create("nullcuda-nccl", 0);
  if (file < 0 || ftruncate(file, sizeof(struct board))) return SYSTEM_ERROR;
  memset(id, 0, sizeof *id);
  sprintf(id->text, "/proc/%d/fd/%d", getpid(), file);
  return OK;
}

API int ncclCommInitRank(void **made, int ranks, ncclUniqueId id, int rank) {
  if (ranks > RANKS) return refuse("too many ranks");
  struct communicator *c = calloc(1, sizeof *c);
  *c = (struct communicator){.rank = rank, .ranks = ranks, .file = open(id.text, O_RDWR | O_CLOEXEC), .device = nullcuda_device()};
  c->board = c->file < 0 ? MAP_FAILED : mmap(0, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED, c->file, 0);
  if (c->board == MAP_FAILED) return SYSTEM_ERROR;
  *made = c;
  return OK;
}
API int ncclCommInitRankConfig(void **made, int ranks, ncclUniqueId id, int rank, void *config) {
  return ncclCommInitRank(made, ranks, id, rank);
}
API int ncclCommInitRankScalable(void **made, int ranks, int rank, int count, ncclUniqueId *ids, void *config) {
  return ncclCommInitRank(made, ranks, ids[0], rank);
}
API int ncclCommInitAll(void **made, int count, const int *devices) {
  ncclUniqueId id;
  int error = ncclGetUniqueId(&id);
  for (int rank = 0; rank < count && !error; rank++) {
    error = ncclCommInitRank(&made[rank], count, id, rank);
    if (!error) ((struct communicator *)made[rank])->device = devices ? devices[rank] : rank;
  }
  return error;
}

API int ncclCommDestroy(struct communicator *c) {
  munmap(c->board, sizeof *c->board);
  close(c->file);
  free(c);
  return OK;
}
// Whoever waits in it is let go, with an error; it is not freed, because that one still reads it.
API int ncclCommAbort(struct communicator *c) { c->aborted = 1; return OK; }
API int ncclCommCount(const struct communicator *c, int *count) { *count = c->ranks; return OK; }
API int ncclCommUserRank(const struct communicator *c, int *rank) { *rank = c->rank; return OK; }
API int ncclCommCuDevice(const struct communicator *c, int *device) { *device = c->device; return OK; }
API int ncclCommGetAsyncError(const struct communicator *c, int *error) { *error = c->aborted ? INTERNAL_ERROR : OK; return OK; }

API int ncclGetVersion(int *version) { *version = 22907; return OK; }
API const char *ncclGetErrorString(int error) {
  return error == SYSTEM_ERROR       ? "a system call of the null NCCL failed"
         : error == INTERNAL_ERROR   ? "the null NCCL was aborted"
         : error == INVALID_ARGUMENT ? "memory and stream of two devices in the null NCCL"
                                     : "invalid usage of the null NCCL";
}
API const char *ncclGetLastError(void *comm) { return "see what the null NCCL has printed"; }
