// Devices: how many, what they are, which one a thread uses; and the settings that come from the environment.
#include "runtime.h"

__thread int current_device;
static __thread cudaError_t last_error;
int machine_late, machine_copies, machine_devices;
size_t machine_bytes;
static const struct machine *machine;
static int visible[8];  // which of the machine's devices each of the process's is
static pthread_mutex_t mutex;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static int setting(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value ? atoi(value) : otherwise;
}

// CUDA_VISIBLE_DEVICES: indices or UUIDs; it ends at the first that does not exist, as CUDA does.
static void see_devices(void) {
  const char *told = getenv("CUDA_VISIBLE_DEVICES");
  if (!told) {
    for (machine_devices = 0; machine_devices < machine->count; machine_devices++) visible[machine_devices] = machine_devices;
    return;
  }
  char *copy = strdup(told), *rest = copy, *word;
  while ((word = strsep(&rest, ",")) && machine_devices < 8) {
    int device = -1;
    for (int d = 0; d < machine->count; d++) {
      char uuid[64], index[8];
      uuid_text(uuid, machine->mig ? "MIG-" : "GPU-", uuid_byte(machine, d));
      sprintf(index, "%d", d);
      if (!strcmp(word, index) || (strlen(word) > 4 && !strncmp(word, uuid, strlen(word)))) device = d;
    }
    if (device < 0) break;
    visible[machine_devices++] = device;
  }
  free(copy);
}

static void begin(void) {
  pthread_mutexattr_t recursive;
  pthread_mutexattr_init(&recursive);
  pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE);
  pthread_mutex_init(&mutex, &recursive);
  machine = this_machine();
  machine_late = setting("NULLCUDA_LATE", 1);
  machine_copies = setting("NULLCUDA_VALUES", 1);
  machine_bytes = getenv("NULLCUDA_GB") ? atof(getenv("NULLCUDA_GB")) * 1e9 : machine->gigabytes;
  see_devices();
}

void lock(void) {
  pthread_once(&once, begin);
  pthread_mutex_lock(&mutex);
}
void unlock(void) { pthread_mutex_unlock(&mutex); }

cudaError_t failed(cudaError_t error) { return last_error = error; }

API cudaError_t cudaGetDeviceCount(int *n) {
  pthread_once(&once, begin);
  *n = machine_devices;
  return machine_devices ? cudaSuccess : failed(cudaErrorNoDevice);
}
API cudaError_t cudaGetDevice(int *device) { *device = current_device; return cudaSuccess; }
API cudaError_t cudaSetDevice(int device) {
  pthread_once(&once, begin);
  if (device < 0 || device >= machine_devices) return failed(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device) {
  pthread_once(&once, begin);
  if (device < 0 || device >= machine_devices) return failed(cudaErrorInvalidDevice);
  memset(p, 0, sizeof *p);
  strcpy(p->name, machine->name);
  p->totalGlobalMem = machine_bytes;
  p->major = machine->major;
  p->minor = machine->minor;
  p->multiProcessorCount = machine->multiprocessors;
  p->pciBusID = 1 + visible[device];
  memset(&p->uuid, uuid_byte(machine, visible[device]), 16);
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = 232448;
  p->sharedMemPerMultiprocessor = 233472;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->warpSize = 32;
  p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
  p->maxThreadsDim[2] = 64;
  p->maxGridSize[0] = 2147483647;
  p->maxGridSize[1] = p->maxGridSize[2] = 65535;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxBlocksPerMultiProcessor = 32;
  p->totalConstMem = 65536;
  p->textureAlignment = 512;
  p->l2CacheSize = 50 << 20;
  p->unifiedAddressing = p->concurrentKernels = 1;
  p->asyncEngineCount = 3;
  return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
  struct cudaDeviceProp p;
  cudaError_t error = cudaGetDeviceProperties(&p, device);
  if (error) return error;
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = p.sharedMemPerBlock; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = p.sharedMemPerBlockOptin; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = p.sharedMemPerMultiprocessor; break;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
    case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
    case cudaDevAttrWarpSize: *value = p.warpSize; break;
    default: *value = 1;
  }
  return cudaSuccess;
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = a != b; return cudaSuccess; }
API cudaError_t cudaDeviceEnablePeerAccess(int device, unsigned flags) { return cudaSuccess; }
API cudaError_t cudaDeviceGetPCIBusId(char *text, int bytes, int device) {
  pthread_once(&once, begin);
  snprintf(text, bytes, "0000:%02x:00.0", 1 + visible[device]);
  return cudaSuccess;
}
API cudaError_t cudaDriverGetVersion(int *version) { *version = 13000; return cudaSuccess; }
API cudaError_t cudaRuntimeGetVersion(int *version) { *version = 13000; return cudaSuccess; }

API cudaError_t cudaGetLastError(void) {
  cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
API cudaError_t cudaPeekAtLastError(void) { return last_error; }
API const char *cudaGetErrorString(cudaError_t e) {
  return e == cudaErrorMemoryAllocation ? "out of memory" : e == cudaErrorInvalidValue ? "invalid argument" : "an error of the null CUDA runtime";
}
API const char *cudaGetErrorName(cudaError_t e) { return "cudaErrorOfTheNullRuntime"; }

// Some of the driver's functions are asked for by name; those that matter answer, the others do nothing.
static int nothing(void) { return 0; }
static int context_state(int device, unsigned *flags, int *active) {
  if (flags) *flags = 0;
  if (active) *active = 1;
  return 0;
}
static int driver_error(int error, const char **text) { *text = "an error of the null CUDA driver"; return 0; }

API cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned version, unsigned long long flags,
                                                 enum cudaDriverEntryPointQueryResult *result) {
  *function = !strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)context_state
              : !strcmp(name, "cuGetErrorString")         ? (void *)driver_error
                                                          : (void *)nothing;
  if (result) *result = 0;
  return cudaSuccess;
}
