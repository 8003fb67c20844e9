"""The CUDA path without a GPU: the CUDA build of torch over libraries whose device is null.

"Device" memory is host memory, copies are real, streams are as late as CUDA allows, kernels are counted and compute
nothing. ``values`` then does what the kernels would have done, on the same memory. What this cannot show: whether a
kernel is right, the bits of cuBLAS and of attention, time; and the text of a CUDA tensor, which torch computes where no
mode sees it (print its ``.cpu()``). ``make nullcuda`` runs all of tests/gpu so, see ``plugin``.
Settings, all from the environment: NULLCUDA_MACHINE (h100, a100, 2xh100, 2xa100, mig), NULLCUDA_GB (memory of each
device), NULLCUDA_LATE=0 (streams run at once), NULLCUDA_VALUES=0 (no values, no large copies: counts alone),
NULLCUDA_PATIENCE (seconds that a rank waits for another in NCCL). NVML has its own, see src/nvml.c.
"""
