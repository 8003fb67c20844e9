// Streams, events and copies. With NULLCUDA_LATE=1 the work of every stream but the default one waits until something
// asks for it: as late as CUDA may be. Copies of pageable memory are done before the call returns, as CUDA does.
#include "runtime.h"

struct event {
  int timed, held;
  double milliseconds;
  struct stream *stream;  // where it was recorded last, and after how much of its work
  long position;
  long after[STREAMS];
};

struct job {
  enum { COPY, SET, RECORD, WAIT } what;
  void *to;
  const void *from;
  size_t bytes;
  int value;
  void *owned;  // freed when it has run
  struct event *event;
  struct stream *other;
  long position;
  struct job *next;
};

static struct stream defaults[8], *streams[STREAMS];
static int made;
static long host_knows[STREAMS];  // of every stream, how much work the host has waited for

static struct stream *enter(struct stream *s, int device, int is_default) {
  if (made == STREAMS) {
    fprintf(stderr, "nullcuda: more than %d streams\n", STREAMS);
    abort();
  }
  s->device = device;
  s->is_default = is_default;
  s->index = made;
  return streams[made++] = s;
}

struct stream *stream_of(cudaStream_t handle) {
  if ((uintptr_t)handle > 2) return (struct stream *)handle;
  struct stream *s = &defaults[current_device];
  return s->is_default ? s : enter(s, current_device, 1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec * 1e-6;
}

// Without values (NULLCUDA_VALUES=0) large copies move nothing.
API int nullcuda_carries(size_t bytes) { return machine_copies || bytes < (1 << 20); }

static void run_to(struct stream *s, long position);

static void run_one(struct stream *s) {
  struct job *job = s->head;
  s->head = job->next;
  if (!s->head) s->tail = 0;
  if (job->what == COPY && nullcuda_carries(job->bytes)) memmove(job->to, job->from, job->bytes);
  if (job->what == SET) memset(job->to, job->value, job->bytes);
  if (job->what == WAIT) run_to(job->other, job->position);
  s->done++;
  if (job->what == RECORD) {
    job->event->milliseconds = now();
    if (!--job->event->held) free(job->event);
  }
  free(job->owned);
  free(job);
}

static void run_to(struct stream *s, long position) {
  while (s->head && s->done < position) run_one(s);
}

void drain(struct stream *s) { run_to(s, s->issued); }

void drain_all(void) {
  for (int i = 0; i < made; i++) drain(streams[i]);
}

static void join(long *into, const long *other) {
  for (int i = 0; i < made; i++)
    if (other[i] > into[i]) into[i] = other[i];
}

static void issue(struct stream *s, struct job job) {
  join(s->after, host_knows);
  struct job *copy = malloc(sizeof *copy);
  *copy = job;
  copy->next = 0;
  if (s->tail) s->tail->next = copy;
  else s->head = copy;
  s->tail = copy;
  s->after[s->index] = ++s->issued;
  if (!machine_late || s->is_default) drain(s);
}

static void host_waited(struct stream *s, long position, const long *after) {
  run_to(s, position);
  join(host_knows, after);
}

// --- races: who touched memory last, and whether the next one comes after it ---

struct touch {
  const char *start, *end, *what;
  int writes, stream;
  long position;
  struct touch *next;
};
static struct touch *touches;
static char race_text[1 << 14];
static int collecting;  // else the first race ends the process

void forget(const void *start, size_t bytes) {
  for (struct touch **at = &touches; *at;) {
    struct touch *t = *at;
    if (t->start < (char *)start + bytes && t->end > (char *)start) {
      *at = t->next;
      free(t);
    } else at = &t->next;
  }
}

// Whether work that the host does not know to be done touches these bytes: to free them CUDA would wait for it.
int in_use(const void *start, size_t bytes) {
  for (struct touch *t = touches; t; t = t->next)
    if (t->start < (char *)start + bytes && t->end > (char *)start && host_knows[t->stream] < t->position) return 1;
  return 0;
}

static void note_race(const struct touch *before, struct stream *s, int writes, const char *what, size_t bytes) {
  size_t at = strlen(race_text);
  snprintf(race_text + at, sizeof race_text - at, "%s on stream %d %s %zu bytes that %s on stream %d %s, without a wait\n", what,
           s->index, writes ? "writes" : "reads", bytes, before->what, before->stream, before->writes ? "wrote" : "read");
  nullcuda_counts.races++;
  if (!collecting) {
    fprintf(stderr, "nullcuda: data race: %s", race_text);
    abort();
  }
}

// The work that stream ``s`` issues next reads or writes these bytes.
void touched(struct stream *s, const void *start, size_t bytes, int writes, const char *what) {
  const char *from = start, *to = from + bytes;
  join(s->after, host_knows);
  for (struct touch **at = &touches; *at;) {
    struct touch *t = *at;
    int overlaps = t->start < to && t->end > from, ordered = t->stream == s->index || s->after[t->stream] >= t->position;
    if (overlaps && !ordered && (writes || t->writes)) note_race(t, s, writes, what, bytes);
    int replaced = t->start >= from && t->end <= to && ordered && (writes || (!t->writes && t->stream == s->index));
    int over = host_knows[t->stream] >= t->position;  // whatever is issued from now on comes after it
    if (over || (overlaps && replaced)) {
      *at = t->next;
      free(t);
    } else at = &t->next;
  }
  struct touch *t = malloc(sizeof *t);
  *t = (struct touch){from, to, what, writes, s->index, s->issued + 1, touches};
  touches = t;
}

API void nullcuda_touched(void *handle, const void *start, size_t bytes, int writes, const char *what) {
  lock();
  struct range *r = range_of(start);
  if (r && r->kind == DEVICE) touched(stream_of(handle), start, bytes, writes, what);
  unlock();
}

API const char *nullcuda_races(void) { return race_text; }
API void nullcuda_collect_races(void) { collecting = 1; }
API void nullcuda_forget_races(void) { race_text[0] = 0; }

// Work of the stream that is not a job of its queue, like a kernel: what was issued before is done first.
API void nullcuda_issue(void *handle) {
  lock();
  struct stream *s = stream_of(handle);
  join(s->after, host_knows);
  drain(s);
  s->after[s->index] = ++s->issued;
  s->done = s->issued;
  unlock();
}

// --- streams and events ---

API cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  lock();
  *s = (cudaStream_t)enter(calloc(1, sizeof(struct stream)), current_device, 0);
  unlock();
  return cudaSuccess;
}
API cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return cudaStreamCreateWithPriority(s, flags, 0); }
API cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithPriority(s, 0, 0); }
API cudaError_t cudaStreamDestroy(cudaStream_t s) { return cudaSuccess; }
API cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority) { *priority = 0; return cudaSuccess; }
API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return cudaSuccess; }

API cudaError_t cudaStreamQuery(cudaStream_t handle) {
  lock();
  struct stream *s = stream_of(handle);
  int busy = s->head != 0;
  if (!busy) host_waited(s, s->issued, s->after);
  unlock();
  return busy ? cudaErrorNotReady : cudaSuccess;
}

API cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  lock();
  struct stream *s = stream_of(handle);
  nullcuda_counts.stream_syncs++;
  host_waited(s, s->issued, s->after);
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaDeviceSynchronize(void) {
  lock();
  nullcuda_counts.device_syncs++;
  for (int i = 0; i < made; i++)
    if (streams[i]->device == current_device) host_waited(streams[i], streams[i]->issued, streams[i]->after);
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  lock();
  struct event *event = calloc(1, sizeof *event);
  event->timed = !(flags & cudaEventDisableTiming);
  event->held = 1;
  *e = (cudaEvent_t)event;
  nullcuda_counts.events_made++;
  unlock();
  return cudaSuccess;
}
API cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }

API cudaError_t cudaEventDestroy(cudaEvent_t e) {
  lock();
  struct event *event = (struct event *)e;
  if (!--event->held) free(event);
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t handle, unsigned flags) {
  lock();
  struct event *event = (struct event *)e;
  struct stream *s = stream_of(handle);
  nullcuda_counts.records++;
  event->held++;
  issue(s, (struct job){.what = RECORD, .event = event});
  event->stream = s;
  event->position = s->issued;
  memcpy(event->after, s->after, sizeof event->after);
  unlock();
  return cudaSuccess;
}
API cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }

API cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned flags) {
  lock();
  struct event *event = (struct event *)e;
  struct stream *s = stream_of(handle);
  nullcuda_counts.waits++;
  if (event->stream) {
    issue(s, (struct job){.what = WAIT, .other = event->stream, .position = event->position});
    join(s->after, event->after);
  }
  unlock();
  return cudaSuccess;
}

static int is_done(struct event *event) { return !event->stream || event->stream->done >= event->position; }

API cudaError_t cudaEventQuery(cudaEvent_t e) {
  lock();
  struct event *event = (struct event *)e;
  int done = is_done(event);
  if (done && event->stream) host_waited(event->stream, event->position, event->after);
  unlock();
  return done ? cudaSuccess : cudaErrorNotReady;
}

API cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  lock();
  struct event *event = (struct event *)e;
  nullcuda_counts.event_syncs++;
  if (event->stream) host_waited(event->stream, event->position, event->after);
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t a, cudaEvent_t b) {
  struct event *start = (struct event *)a, *end = (struct event *)b;
  if (!start->timed || !end->timed || !start->stream || !end->stream) return failed(cudaErrorInvalidResourceHandle);
  if (!is_done(start) || !is_done(end)) return failed(cudaErrorNotReady);
  *milliseconds = end->milliseconds - start->milliseconds;
  return cudaSuccess;
}

// --- copies ---

static int on_device(const struct range *r) { return r && r->kind == DEVICE; }

static void count_copy(const struct range *to, const struct range *from, size_t bytes) {
  if (on_device(to) && on_device(from)) nullcuda_counts.d2d++;
  else if (on_device(to)) {
    nullcuda_counts.bytes_h2d += bytes;
    from ? nullcuda_counts.h2d_pinned++ : nullcuda_counts.h2d_pageable++;
  } else {
    nullcuda_counts.bytes_d2h += bytes;
    to ? nullcuda_counts.d2h_pinned++ : nullcuda_counts.d2h_pageable++;
  }
}

// Why CUDA would refuse this copy, or would do what nobody meant; null if it is sound.
static const char *refused(const struct range *r, const char *start, size_t bytes, const struct range *other, const struct stream *s) {
  if (!r) return 0;
  if (start + bytes > r->start + r->bytes) return r->kind == DEVICE ? "runs past the end of device memory" : "crosses the edge of pinned memory";
  if (on_device(r) && !on_device(other) && r->device != s->device) return "is on a stream of another device than the memory";
  return 0;
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t handle) {
  lock();
  struct stream *s = stream_of(handle);
  struct range *a = range_of(to), *b = range_of(from);
  const char *why = refused(a, to, bytes, b, s);
  if (!why) why = refused(b, from, bytes, a, s);
  if (why) {
    fprintf(stderr, "nullcuda: a copy of %zu bytes %s\n", bytes, why);
    unlock();
    return failed(cudaErrorInvalidValue);
  }
  count_copy(a, b, bytes);
  if (a) touched(s, to, bytes, 1, "a copy");
  if (b) touched(s, from, bytes, 0, "a copy");
  issue(s, (struct job){.what = COPY, .to = to, .from = from, .bytes = bytes});
  if (!a || !b) drain(s);
  if (!a) host_waited(s, s->issued, s->after);
  unlock();
  return cudaSuccess;
}

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, 0);
  return error ? error : cudaStreamSynchronize(0);
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                                  enum cudaMemcpyKind kind, cudaStream_t s) {
  cudaError_t error = cudaSuccess;
  for (size_t i = 0; i < height && !error; i++)
    error = cudaMemcpyAsync((char *)to + i * to_pitch, (const char *)from + i * from_pitch, width, kind, s);
  return error;
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes, cudaStream_t s) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, s);
}

API cudaError_t cudaMemcpyToSymbol(const void *to, const void *from, size_t bytes, size_t offset, enum cudaMemcpyKind kind) {
  return cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t handle) {
  lock();
  nullcuda_counts.memsets++;
  struct stream *s = stream_of(handle);
  touched(s, to, bytes, 1, "a memset");
  issue(s, (struct job){.what = SET, .to = to, .bytes = bytes, .value = value});
  unlock();
  return cudaSuccess;
}
API cudaError_t cudaMemset(void *to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, 0); }

// --- collectives: the other ranks are NCCL's ---

API int nullcuda_device(void) { return current_device; }
API void *nullcuda_stream(void *handle) {
  lock();
  struct stream *s = stream_of(handle);
  unlock();
  return s;
}

static int misplaced(const void *memory, const struct stream *s) {
  struct range *r = range_of(memory);
  return !on_device(r) || r->device != s->device;
}

// A collective takes these bytes: all that comes before it on its stream is done. 0, or that it is on another device.
API int nullcuda_taken(void *handle, const void *from, size_t bytes) {
  lock();
  struct stream *s = stream_of(handle);
  int wrong = misplaced(from, s);
  nullcuda_counts.launches++;
  if (!wrong) {
    touched(s, from, bytes, 0, "a collective");
    drain(s);
  }
  unlock();
  return wrong;
}

// It gives a result, which is freed when it has arrived.
API int nullcuda_given(void *handle, void *to, void *result, size_t bytes) {
  lock();
  struct stream *s = stream_of(handle);
  int wrong = misplaced(to, s);
  if (!wrong) {
    touched(s, to, bytes, 1, "a collective");
    issue(s, (struct job){.what = COPY, .to = to, .from = result, .bytes = bytes, .owned = result});
  } else free(result);
  unlock();
  return wrong;
}
