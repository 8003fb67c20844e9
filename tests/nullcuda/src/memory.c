// Memory: "device" memory is host memory. What was given back stays mapped without access, so that late work on it stops
// the process where it is.
#include "runtime.h"

struct counts nullcuda_counts;
static struct range *ranges;
static size_t used[8];

struct range *range_of(const void *address) {
  for (struct range *r = ranges; r; r = r->next)
    if ((char *)address >= r->start && (char *)address < r->start + r->bytes) return r;
  return 0;
}

static void add(void *start, size_t bytes, enum kind kind) {
  struct range *r = malloc(sizeof *r);
  *r = (struct range){start, bytes, kind, current_device, ranges};
  ranges = r;
}

static int give_back(void *start, enum kind kind) {
  for (struct range **at = &ranges; *at; at = &(*at)->next) {
    struct range *r = *at;
    if (r->start != start || r->kind != kind) continue;
    *at = r->next;
    if (kind == DEVICE) used[r->device] -= r->bytes;
    if (kind != HOST_REGISTERED) {
      madvise(r->start, r->bytes, MADV_DONTNEED);
      mprotect(r->start, r->bytes, PROT_NONE);
    }
    forget(r->start, r->bytes);
    free(r);
    return 1;
  }
  return 0;
}

static void *mapped(size_t bytes) {
  void *p = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? 0 : p;
}

static size_t pages(size_t bytes) { return ((bytes ? bytes : 1) + 4095) & ~(size_t)4095; }

API cudaError_t cudaMalloc(void **p, size_t bytes) {
  lock();
  bytes = pages(bytes);
  int fits = used[current_device] + bytes <= machine_bytes && (*p = mapped(bytes));
  if (fits) {
    used[current_device] += bytes;
    add(*p, bytes, DEVICE);
    nullcuda_counts.mallocs++;
  }
  unlock();
  return fits ? cudaSuccess : failed(cudaErrorMemoryAllocation);
}

API cudaError_t cudaFree(void *p) {
  if (!p) return cudaSuccess;
  lock();
  struct range *r = range_of(p);
  if (r && in_use(r->start, r->bytes)) nullcuda_counts.waiting_frees++;
  drain_all();
  int known = give_back(p, DEVICE);
  nullcuda_counts.frees++;
  unlock();
  return known ? cudaSuccess : failed(cudaErrorInvalidValue);
}

API cudaError_t cudaMallocAsync(void **p, size_t bytes, cudaStream_t s) { return cudaMalloc(p, bytes); }
API cudaError_t cudaFreeAsync(void *p, cudaStream_t s) { return cudaFree(p); }

API cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags) {
  lock();
  bytes = pages(bytes);
  *p = mapped(bytes);
  add(*p, bytes, HOST_ALLOCATED);
  nullcuda_counts.host_allocs++;
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaFreeHost(void *p) {
  lock();
  drain_all();
  int known = give_back(p, HOST_ALLOCATED);
  unlock();
  return known ? cudaSuccess : failed(cudaErrorInvalidValue);
}

API cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags) {
  lock();
  int overlaps = 0;
  for (struct range *r = ranges; r; r = r->next) overlaps |= (char *)p < r->start + r->bytes && r->start < (char *)p + bytes;
  if (!overlaps) {
    add(p, bytes, HOST_REGISTERED);
    nullcuda_counts.host_registers++;
  }
  unlock();
  return overlaps ? failed(cudaErrorHostMemoryAlreadyRegistered) : cudaSuccess;
}

API cudaError_t cudaHostUnregister(void *p) {
  lock();
  drain_all();
  int known = give_back(p, HOST_REGISTERED);
  unlock();
  return known ? cudaSuccess : failed(cudaErrorHostMemoryNotRegistered);
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total) {
  lock();
  *total = machine_bytes;
  *free_bytes = machine_bytes - used[current_device];
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  lock();
  struct range *r = range_of(p);
  memset(a, 0, sizeof *a);
  a->type = !r ? cudaMemoryTypeUnregistered : r->kind == DEVICE ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  a->device = r ? r->device : -1;
  a->devicePointer = r ? (void *)p : 0;
  a->hostPointer = r && r->kind != DEVICE ? (void *)p : 0;
  unlock();
  return cudaSuccess;
}
