// cuBLAS, cuDNN and NCCL: handles, versions and the answers without which torch would not start. All else does nothing.
#include <stddef.h>
#define API __attribute__((visibility("default")))
static char memory[4096];
#define HANDLE(name, ...) API int name(void **handle, ##__VA_ARGS__) { *handle = memory; return 0; }

HANDLE(cublasCreate_v2)
HANDLE(cublasLtCreate)
HANDLE(cudnnCreate)
HANDLE(cublasLtMatmulDescCreate, int compute, int scale)
HANDLE(cublasLtMatrixLayoutCreate, int type, unsigned long rows, unsigned long columns, long leading)
HANDLE(cublasLtMatmulPreferenceCreate)
API int cublasLtMatmulAlgoGetHeuristic(void *lt, void *operation, void *a, void *b, void *c, void *d, void *preference, int wanted,
                                       void *results, int *count) {
  *count = 1;
  return 0;
}
API int cublasGetMathMode(void *handle, int *mode) { *mode = 0; return 0; }
API int cublasGetPointerMode_v2(void *handle, int *mode) { *mode = 0; return 0; }
API int cublasGetVersion_v2(void *handle, int *version) { *version = 130000; return 0; }
API int cublasGetProperty(int which, int *value) { *value = which == 0 ? 13 : 0; return 0; }
API const char *cublasGetStatusString(int error) { return "an error of the null cuBLAS"; }
API size_t cublasLtGetVersion(void) { return 130000; }
API size_t cudnnGetVersion(void) { return 92000; }
API size_t cudnnGetCudartVersion(void) { return 13000; }
API const char *cudnnGetErrorString(int error) { return "an error of the null cuDNN"; }
