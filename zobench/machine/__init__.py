"""This machine: its devices, memory, disks, network and NUMA nodes, and files that survive a crash."""
