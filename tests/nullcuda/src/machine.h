// The machines that the null runtime pretends to be: NULLCUDA_MACHINE names one, h100 by default.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct machine {
  const char *key, *name;
  int count, major, minor, multiprocessors, mig, pcie_generation, nvlink;
  double gigabytes;
};

static const struct machine MACHINES[] = {
    {"h100", "NULL H100 80GB", 1, 9, 0, 132, 0, 5, 0, 80e9},
    {"a100", "NULL A100 40GB", 1, 8, 0, 108, 0, 4, 0, 40e9},
    {"2xh100", "NULL H100 80GB", 2, 9, 0, 132, 0, 5, 1, 80e9},
    {"2xa100", "NULL A100 40GB", 2, 8, 0, 108, 0, 4, 0, 40e9},
    {"mig", "NULL H100 80GB MIG 1g.10gb", 1, 9, 0, 16, 1, 5, 0, 10e9},
};

static const struct machine *this_machine(void) {
  const char *key = getenv("NULLCUDA_MACHINE");
  for (size_t i = 0; i < sizeof MACHINES / sizeof *MACHINES; i++)
    if (!strcmp(key ? key : "h100", MACHINES[i].key)) return &MACHINES[i];
  fprintf(stderr, "NULLCUDA_MACHINE=%s is none of h100, a100, 2xh100, 2xa100, mig\n", key);
  abort();
}

// The 16 bytes of a device's UUID are all 0x11 for the first, 0x12 for the second; a MIG part has 0xa1.
static int uuid_byte(const struct machine *m, int device) { return (m->mig ? 0xa1 : 0x11) + device; }

static void uuid_text(char *out, const char *prefix, int byte) {
  sprintf(out, "%s%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix, byte, byte, byte, byte, byte,
          byte, byte, byte, byte, byte, byte, byte, byte, byte, byte, byte);
}
