// NVML as pynvml asks it. NULLCUDA_NVML_DENY names calls that need a permission (a part of the name is enough).
#include "machine.h"
#define API __attribute__((visibility("default")))
enum { OK, NOT_SUPPORTED = 3, NO_PERMISSION = 4, NOT_FOUND = 6 };

struct memory { unsigned long long total, free, used; };
struct process { unsigned pid; unsigned long long bytes; unsigned gpu, compute; };

static struct { int device, mig; } devices[8];

static int denied(const char *call) {
  const char *names = getenv("NULLCUDA_NVML_DENY");
  return names && *names && strstr(call, names) != 0;
}
#define CALL if (denied(__func__)) return NO_PERMISSION
// A part of a GPU has no power, clocks or link of its own.
#define WHOLE(d) CALL; if (devices[*(int *)(d)].mig) return NOT_SUPPORTED

API int nvmlInitWithFlags(unsigned flags) { CALL; return OK; }
API int nvmlInit_v2(void) { return OK; }
API int nvmlShutdown(void) { return OK; }
API const char *nvmlErrorString(int error) {
  return error == NO_PERMISSION ? "Insufficient Permissions" : error == NOT_FOUND ? "Not Found" : "Not Supported";
}
API int nvmlSystemGetDriverVersion(char *text, unsigned bytes) { snprintf(text, bytes, "580.65.06"); return OK; }

API int nvmlDeviceGetCount_v2(unsigned *n) { CALL; *n = this_machine()->count; return OK; }

static int *device(int index, int mig) {
  static int numbers[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  int at = index + (mig ? 4 : 0);
  devices[at].device = index;
  devices[at].mig = mig;
  return &numbers[at];
}
API int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
  CALL;
  if ((int)index >= this_machine()->count) return NOT_FOUND;
  *out = device(index, 0);
  return OK;
}
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
  CALL;
  const struct machine *m = this_machine();
  for (int d = 0; d < m->count; d++) {
    char own[64];
    uuid_text(own, m->mig ? "MIG-" : "GPU-", uuid_byte(m, d));
    if (!strcmp(uuid, own)) {
      *out = device(d, m->mig);
      return OK;
    }
  }
  return NOT_FOUND;
}
API int nvmlDeviceGetHandleByPciBusId_v2(const char *bus, void **out) {
  unsigned domain, number;
  sscanf(bus, "%x:%x", &domain, &number);
  return nvmlDeviceGetHandleByIndex_v2(number - 1, out);
}
API int nvmlDeviceGetName(void *d, char *text, unsigned bytes) { CALL; snprintf(text, bytes, "%s", this_machine()->name); return OK; }
API int nvmlDeviceGetMemoryInfo(void *d, struct memory *memory) {
  CALL;
  unsigned long long total = this_machine()->gigabytes;
  *memory = (struct memory){total, total - 500000000ull, 500000000ull};
  return OK;
}
API int nvmlDeviceGetComputeRunningProcesses_v3(void *d, unsigned *count, struct process *out) { CALL; *count = 0; return OK; }
API int nvmlDeviceGetPowerUsage(void *d, unsigned *milliwatts) { WHOLE(d); *milliwatts = 250000; return OK; }
API int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *millijoules) {
  static unsigned long long spent = 1000000;
  WHOLE(d);
  *millijoules = spent += 5000;
  return OK;
}
API int nvmlDeviceGetClockInfo(void *d, int which, unsigned *megahertz) { WHOLE(d); *megahertz = 1500 + which; return OK; }
API int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *degrees) { WHOLE(d); *degrees = 61; return OK; }
API int nvmlDeviceGetCurrentClocksThrottleReasons(void *d, unsigned long long *reasons) { WHOLE(d); *reasons = 0; return OK; }
API int nvmlDeviceGetCurrPcieLinkGeneration(void *d, unsigned *n) { WHOLE(d); *n = this_machine()->pcie_generation; return OK; }
API int nvmlDeviceGetMaxPcieLinkGeneration(void *d, unsigned *n) { WHOLE(d); *n = this_machine()->pcie_generation; return OK; }
API int nvmlDeviceGetCurrPcieLinkWidth(void *d, unsigned *n) { WHOLE(d); *n = 16; return OK; }
API int nvmlDeviceGetMaxPcieLinkWidth(void *d, unsigned *n) { WHOLE(d); *n = 16; return OK; }
// Of the ways that two GPUs may reach each other only NVLink (2) is asked for; 5: not supported.
API int nvmlDeviceGetP2PStatus(void *a, void *b, int way, int *status) { CALL; *status = this_machine()->nvlink ? 0 : 5; return OK; }

// What torch asks of NVML besides.
API int nvmlDeviceGetComputeRunningProcesses(void *d, unsigned *count, struct process *out) { *count = 0; return OK; }
API int nvmlDeviceGetNvLinkRemoteDeviceType(void *d, unsigned link, int *type) { return NOT_SUPPORTED; }
API int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *d, unsigned link, void *info) { return NOT_SUPPORTED; }
API int nvmlDeviceGetGpuFabricInfoV(void *d, void *info) { return NOT_SUPPORTED; }
API int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 13000; return OK; }
