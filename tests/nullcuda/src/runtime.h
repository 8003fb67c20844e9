// What the parts of the null CUDA runtime share. One lock guards all of it.
#define _GNU_SOURCE
#define CUDARTAPI_CDECL
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/mman.h>

#include "machine.h"
#undef cudaGetDeviceProperties

#define API __attribute__((visibility("default")))
#define STREAMS 512

// Counted since the process began; tests/nullcuda/counts.py reads them by these names, in this order.
struct counts {
  long launches, triton, h2d_pinned, h2d_pageable, d2h_pinned, d2h_pageable, d2d, memsets;
  long stream_syncs, device_syncs, event_syncs, events_made, records, waits;
  long mallocs, frees, host_allocs, host_registers, bytes_h2d, bytes_d2h, races, waiting_frees;
};
extern struct counts nullcuda_counts;

enum kind { HOST_ALLOCATED = 1, DEVICE, HOST_REGISTERED };
struct range {
  char *start;
  size_t bytes;
  enum kind kind;
  int device;
  struct range *next;
};

// A stream: a queue of work, and how much of every stream's work is known to come before its next operation.
struct stream {
  int index, device, is_default;
  long issued, done;
  long after[STREAMS];
  struct job *head, *tail;
};

extern __thread int current_device;
extern int machine_late, machine_copies, machine_devices;
extern size_t machine_bytes;

void lock(void);
void unlock(void);
cudaError_t failed(cudaError_t error);
struct range *range_of(const void *address);
struct stream *stream_of(cudaStream_t handle);
void drain(struct stream *stream);
void drain_all(void);
void touched(struct stream *stream, const void *start, size_t bytes, int writes, const char *what);
void forget(const void *start, size_t bytes);
int in_use(const void *start, size_t bytes);
