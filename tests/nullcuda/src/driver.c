// The driver as Triton uses it: modules load, launches are counted by the runtime (nullcuda_triton) and compute nothing.
#include <cuda.h>
#include <stdlib.h>
#include <string.h>

#include "machine.h"
#define API __attribute__((visibility("default")))

API CUresult cuInit(unsigned flags) { return 0; }
API CUresult cuGetErrorString(CUresult e, const char **text) { *text = "an error of the null CUDA driver"; return 0; }
API CUresult cuDriverGetVersion(int *version) { *version = 13000; return 0; }
API CUresult cuDeviceGet(CUdevice *device, int n) { *device = n; return 0; }
API CUresult cuDeviceGetCount(int *n) { *n = this_machine()->count; return 0; }
API CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute a, CUdevice device) {
  switch (a) {
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = this_machine()->major; break;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = this_machine()->minor; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = this_machine()->multiprocessors; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 232448; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    default: *value = 1000;
  }
  return 0;
}
API CUresult cuCtxGetCurrent(CUcontext *c) { *c = (CUcontext)1; return 0; }
API CUresult cuCtxSetCurrent(CUcontext c) { return 0; }
API CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return 0; }
API CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return 0; }
API CUresult cuDevicePrimaryCtxRetain(CUcontext *c, CUdevice device) { *c = (CUcontext)1; return 0; }
API CUresult cuModuleLoadData(CUmodule *m, const void *image) { *m = (CUmodule)image; return 0; }
API CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { *f = (CUfunction)strdup(name); return 0; }
API CUresult cuFuncGetAttribute(int *value, CUfunction_attribute a, CUfunction f) {
  *value = a == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : a == CU_FUNC_ATTRIBUTE_NUM_REGS ? 32 : 0;
  return 0;
}
API CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int value) { return 0; }
API CUresult cuFuncSetCacheConfig(CUfunction f, CUfunc_cache c) { return 0; }
API CUresult cuPointerGetAttribute(void *value, CUpointer_attribute a, CUdeviceptr p) { *(CUdeviceptr *)value = p; return 0; }
API CUresult cuOccupancyMaxActiveClusters(int *n, CUfunction f, const CUlaunchConfig *c) { *n = 1; return 0; }

API void nullcuda_triton_launch(void *stream);  // of the runtime
API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **arguments, void **extra) {
  if (!c->gridDimX || !c->gridDimY || !c->gridDimZ || c->gridDimY > 65535 || c->gridDimZ > 65535) return CUDA_ERROR_INVALID_VALUE;
  nullcuda_triton_launch(c->hStream);
  return 0;
}
