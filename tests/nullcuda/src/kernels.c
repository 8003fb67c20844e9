// Kernels of torch: launches are checked as CUDA checks them, counted by name, and compute nothing.
#include "runtime.h"

struct function {
  const void *host;
  const char *name;
  long count;
  struct function *next;
};
static struct function *functions[1 << 16];

static unsigned bucket(const void *p) { return (unsigned)(((unsigned)((uintptr_t)p >> 2) * 2654435761u) >> 16); }

API void **__cudaRegisterFatBinary(void *binary) { static void *handle[1]; return handle; }
API void __cudaRegisterFatBinaryEnd(void **handle) {}
API void __cudaUnregisterFatBinary(void **handle) {}
API char __cudaInitModule(void **handle) { return 1; }
API void __cudaRegisterVar(void **handle, char *host, char *device, const char *name, int ext, size_t bytes, int constant, int global) {}
API void __cudaRegisterFunction(void **handle, const char *host, char *device_name, const char *name, int limit, void *a, void *b,
                                void *c, void *d, int *e) {
  struct function *f = malloc(sizeof *f);
  *f = (struct function){host, name, 0, functions[bucket(host)]};
  functions[bucket(host)] = f;
}

static __thread struct { dim3 grid, block; size_t shared; void *stream; } pushed[8];
static __thread int depth;
API unsigned __cudaPushCallConfiguration(struct dim3 grid, struct dim3 block, size_t shared, struct CUstream_st *stream) {
  pushed[depth].grid = grid;
  pushed[depth].block = block;
  pushed[depth].shared = shared;
  pushed[depth++].stream = stream;
  return 0;
}
API cudaError_t __cudaPopCallConfiguration(struct dim3 *grid, struct dim3 *block, size_t *shared, void *stream) {
  depth--;
  *grid = pushed[depth].grid;
  *block = pushed[depth].block;
  *shared = pushed[depth].shared;
  *(void **)stream = pushed[depth].stream;
  return cudaSuccess;
}

static cudaError_t launch(const void *host, dim3 grid, dim3 block, cudaStream_t handle) {
  if (!grid.x || !grid.y || !grid.z || !block.x || grid.y > 65535 || grid.z > 65535 || block.x * block.y * block.z > 1024)
    return failed(cudaErrorInvalidConfiguration);
  lock();
  struct stream *s = stream_of(handle);
  int foreign = s->device != current_device;
  if (!foreign) {
    drain(s);
    nullcuda_counts.launches++;
    for (struct function *f = functions[bucket(host)]; f; f = f->next)
      if (f->host == host) {
        f->count++;
        break;
      }
  }
  unlock();
  return foreign ? failed(cudaErrorInvalidResourceHandle) : cudaSuccess;
}

API cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *host) { *kernel = (cudaKernel_t)host; return cudaSuccess; }
API cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  return launch((void *)k, grid, block, s);
}
API cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  return launch(f, grid, block, s);
}
API cudaError_t cudaLaunchCooperativeKernel(const void *f, dim3 grid, dim3 block, void **arguments, size_t shared, cudaStream_t s) {
  return launch(f, grid, block, s);
}
API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **arguments) {
  return launch(f, c->gridDim, c->blockDim, c->stream);
}

// A function of the host on a stream: run at once, after what was issued before.
API cudaError_t cudaLaunchHostFunc(cudaStream_t s, cudaHostFn_t f, void *data) {
  lock();
  drain(stream_of(s));
  unlock();
  f(data);
  return cudaSuccess;
}
API cudaError_t cudaStreamAddCallback(cudaStream_t s, cudaStreamCallback_t f, void *data, unsigned flags) {
  lock();
  drain(stream_of(s));
  unlock();
  f(s, cudaSuccess, data);
  return cudaSuccess;
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->ptxVersion = a->binaryVersion = 90;
  return cudaSuccess;
}
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *n, const void *f, int block, size_t shared) { *n = 2; return cudaSuccess; }
API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int block, size_t shared, unsigned flags) {
  *n = 2;
  return cudaSuccess;
}
API cudaError_t cudaGetSymbolAddress(void **p, const void *symbol) { static char memory[1 << 16]; *p = memory; return cudaSuccess; }

// Nothing is ever captured into a graph.
API cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status) { *status = 0; return cudaSuccess; }
API cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { return cudaSuccess; }
API cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id, cudaGraph_t *graph,
                                         const cudaGraphNode_t **nodes, const cudaGraphEdgeData **edges, size_t *n) {
  if (status) *status = 0;
  if (id) *id = 0;
  if (n) *n = 0;
  return cudaSuccess;
}

// "count name" of every kernel launched so far, a line each.
API int nullcuda_kernels(char *out, int bytes) {
  int at = 0;
  lock();
  for (int i = 0; i < 1 << 16; i++)
    for (struct function *f = functions[i]; f; f = f->next)
      if (f->count && at < bytes - 400) at += snprintf(out + at, bytes - at, "%ld %.300s\n", f->count, f->name);
  unlock();
  return at;
}

// A launch of Triton's, from the driver.
API void nullcuda_triton_launch(void *handle) {
  lock();
  drain(stream_of(handle));
  nullcuda_counts.triton++;
  unlock();
}
